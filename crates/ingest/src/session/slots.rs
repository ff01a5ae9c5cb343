//! Slots: when each of many agents should come back, so that a restart of one
//! instance is never a stampede on another.

use std::time::Duration;

/// How many agents may arrive in a second at the siblings.
const ARRIVALS: f64 = 200.0;

/// `count` waits, evenly spread at the rate that siblings can take, but over no
/// longer than `most`.
pub fn slots(count: usize, most: Duration) -> impl Iterator<Item = Duration> {
    let wanted = Duration::from_secs_f64(count as f64 / ARRIVALS);
    let step = wanted.min(most).div_f64(count.max(1) as f64);
    (0..count).map(move |index| step.mul_f64(index as f64 + rand::random::<f64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_stay_under_the_rate_in_every_second() {
        let slots: Vec<Duration> = slots(2000, Duration::from_mins(5)).collect();
        for second in 0..10 {
            let arrivals = slots.iter().filter(|slot| slot.as_secs() == second).count();
            assert!(
                (190..=210).contains(&arrivals),
                "{arrivals} in second {second}"
            );
        }
        assert!(slots.iter().all(|slot| *slot < Duration::from_secs(10)));
    }

    #[test]
    fn however_many_there_are_they_are_back_in_time() {
        let most = Duration::from_mins(5);
        assert!(slots(1_000_000, most).all(|slot| slot <= most));
        assert_eq!(slots(0, most).count(), 0);
    }
}
