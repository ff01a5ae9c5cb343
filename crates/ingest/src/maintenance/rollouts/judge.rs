//! The rules by which a rollout advances or halts, as a pure function.

use svc_store::{RolloutFigures, RolloutStep};

/// Percent of the offered that must have approved the release before the next stage begins.
const APPROVED: i64 = 95;
/// Percent of the offered that may refuse it, after the first stage.
const REFUSED: i64 = 1;
/// How much larger the share of the offered that go offline may be than that of the others, in percent.
const DARK: i64 = 1;

/// What becomes of a rollout now; `None`: nothing. `first`: its first stage, the canaries. `soaked`: the stage has lasted for as
/// long as it must, and this is one of its hours.
///
/// A halt needs no soak. It rounds in favour of the hosts: one dark canary of five is 20 %, and halts.
pub fn judge(first: bool, soaked: bool, figures: &RolloutFigures) -> Option<RolloutStep> {
    let RolloutFigures {
        offered,
        approved,
        refused,
        dark,
        due,
        others,
        others_dark,
        in_doubt,
    } = *figures;
    if in_doubt || offered <= 0 {
        return None;
    }
    if refused > 0 && (first || refused * 100 > offered * REFUSED) {
        let reason = format!("{refused} of {offered} agents refused the release");
        return Some(RolloutStep::Halt(reason));
    }
    // dark / offered > others_dark / others + 1 %, without fractions.
    let others = others.max(1);
    if dark * others * 100 > offered * (others_dark * 100 + others * DARK) {
        let reason = format!(
            "{dark} of {offered} agents went offline after the offer, and {others_dark} of {others} others"
        );
        return Some(RolloutStep::Halt(reason));
    }
    let enough = approved * 100 >= offered * APPROVED;
    (soaked && due == 0 && enough).then_some(RolloutStep::Advance)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// Figures of some fleet. Those of a release are parts of what was offered.
        fn any_figures()(offered in 0..100_000_i64, others in 0..100_000_i64)(
            offered in Just(offered),
            approved in 0..=offered,
            refused in prop_oneof![Just(0), 0..=offered.min(20), 0..=offered],
            dark in prop_oneof![Just(0), 0..=offered.min(20), 0..=offered],
            due in prop_oneof![Just(0), 0..1000_i64],
            others in Just(others),
            others_dark in 0..=others,
            in_doubt in any::<bool>(),
        ) -> RolloutFigures {
            RolloutFigures { offered, approved, refused, dark, due, others, others_dark, in_doubt }
        }
    }

    fn halts(step: &Option<RolloutStep>) -> bool {
        matches!(step, Some(RolloutStep::Halt(_)))
    }

    fn well(offered: i64) -> RolloutFigures {
        RolloutFigures {
            offered,
            approved: offered,
            others: 1000,
            ..RolloutFigures::default()
        }
    }

    #[test]
    fn a_stage_advances_when_nearly_all_have_approved_after_its_soak() {
        let judged = |soaked, figures| judge(false, soaked, &figures);
        assert_eq!(judged(true, well(100)), Some(RolloutStep::Advance));
        assert_eq!(judged(false, well(100)), None);
        let due = RolloutFigures {
            due: 1,
            ..well(100)
        };
        assert_eq!(judged(true, due), None);
        let share = |approved| RolloutFigures {
            approved,
            ..well(100)
        };
        assert_eq!(judged(true, share(95)), Some(RolloutStep::Advance));
        assert_eq!(judged(true, share(94)), None);
        assert_eq!(judged(true, well(0)), None, "nothing is proven");
    }

    #[test]
    fn a_canary_that_refuses_or_goes_dark_halts_and_the_weather_does_not() {
        let refused = RolloutFigures {
            refused: 1,
            approved: 199,
            ..well(200)
        };
        assert!(halts(&judge(true, false, &refused)));
        assert_eq!(judge(false, true, &refused), Some(RolloutStep::Advance));
        let canary = RolloutFigures { dark: 1, ..well(5) };
        assert!(halts(&judge(true, true, &canary)));
        let storm = RolloutFigures {
            dark: 30,
            others_dark: 300,
            ..well(100)
        };
        assert_eq!(judge(false, true, &storm), Some(RolloutStep::Advance));
        let alone = RolloutFigures {
            others: 0,
            ..canary
        };
        assert!(halts(&judge(true, true, &alone)));
    }

    proptest! {
        #[test]
        fn nothing_is_judged_in_doubt_or_before_an_offer(figures in any_figures(), first: bool, soaked: bool) {
            if figures.in_doubt || figures.offered == 0 {
                prop_assert_eq!(judge(first, soaked, &figures), None);
            }
        }

        #[test]
        fn no_rollout_advances_early_or_past_damage(figures in any_figures(), first: bool, soaked: bool) {
            if judge(first, soaked, &figures) == Some(RolloutStep::Advance) {
                prop_assert!(soaked && figures.due == 0);
                prop_assert!(figures.approved as f64 >= 0.95 * figures.offered as f64 - 1e-9);
                prop_assert!(figures.refused as f64 <= 0.01 * figures.offered as f64 + 1e-9);
                prop_assert!(!first || figures.refused == 0);
            }
        }

        #[test]
        fn more_damage_never_makes_a_halt_disappear(figures in any_figures(), first: bool, soaked: bool) {
            if halts(&judge(first, soaked, &figures)) {
                let worse = |refused, dark| {
                    let figures = RolloutFigures {
                        refused: figures.refused + refused,
                        dark: figures.dark + dark,
                        ..figures
                    };
                    halts(&judge(first, soaked, &figures))
                };
                prop_assert!(worse(1, 0) && worse(0, 1));
                prop_assert!(halts(&judge(true, !soaked, &figures)));
            }
        }
    }
}
