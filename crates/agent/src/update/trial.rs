//! Whether a new version works, as rules over time and what the process hears from the service.
//!
//! A version on trial is approved when acknowledgements of its reports have arrived over the time of a trial, in one process. If
//! no Welcome comes, or no acknowledgement, it goes back. That alone proves nothing: the service may be down. So the version
//! before it becomes the judge. If it reaches within the same time what the new one did not, that counts against the new
//! version; if it does not either, the service was at fault, and the new version gets its try back. Only a version that has lost
//! all of its tries so is refused: one failure of the service that happens to end with the trial must not look like a defect.
//!
//! After its first acknowledgement a version is not judged by its connection any more. It then has proved that it can reach the
//! service, and only its end (a crash, an exit, the watchdog) costs a try.

use std::time::Duration;

use tokio::time::Instant;

use super::store::{Failed, Lack};

/// The longest pause between two downloads, or two trials, that failed.
pub const LONGEST_PAUSE: Duration = Duration::from_hours(24);

/// All waits of updates follow from the time of a trial and the interval of reports.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    pub trial: Duration,
    pub interval: Duration,
}

impl Waits {
    /// For the first Welcome. Three tries take no longer than a trial that succeeds.
    pub fn welcome(&self) -> Duration {
        self.trial / 3
    }

    /// For the first acknowledgement.
    pub fn acknowledgement(&self) -> Duration {
        self.trial.max(3 * self.interval)
    }

    /// The longest silence of an agent that restarts for an update: the new version tries, and the old one returns.
    pub fn back_within(&self) -> Duration {
        2 * self.welcome()
    }

    /// The pause after so many failures: from half of a trial, which is 5 minutes, to a day.
    pub fn pause(&self, failures: u32) -> Duration {
        let factor = 1_u32 << failures.min(12);
        (self.trial / 2).saturating_mul(factor).min(LONGEST_PAUSE)
    }

    /// A fleet that is offered a release at once does not come at once.
    pub fn first_pause(&self) -> Duration {
        self.trial / 10
    }
}

/// What an agent hears from the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Welcome,
    Acknowledgement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This process is the version on trial.
    Trying,
    /// This process is the version before it, which failed to reach this.
    Judging(Lack),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Approved,
    GoBack(Failed),
    /// The version before reached in time what the new one did not.
    Against,
    /// Neither reached it: the service was at fault.
    Excused,
}

#[derive(Debug)]
pub struct Watch {
    role: Role,
    waits: Waits,
    began: Instant,
    is_welcome: bool,
    first_ack: Option<Instant>,
}

impl Watch {
    pub fn new(role: Role, waits: Waits, now: Instant) -> Self {
        Self {
            role,
            waits,
            began: now,
            is_welcome: false,
            first_ack: None,
        }
    }

    pub fn is_trying(&self) -> bool {
        self.role == Role::Trying
    }

    pub fn heard(&mut self, sign: Sign, now: Instant) -> Option<Verdict> {
        self.is_welcome = true;
        if sign == Sign::Acknowledgement {
            self.first_ack.get_or_insert(now);
        }
        match self.role {
            Role::Trying => {
                let proven = self
                    .first_ack
                    .is_some_and(|first| now - first >= self.waits.trial);
                (proven && sign == Sign::Acknowledgement).then_some(Verdict::Approved)
            }
            Role::Judging(Lack::Acknowledgement) => self.first_ack.map(|_| Verdict::Against),
            Role::Judging(Lack::Life | Lack::Welcome) => Some(Verdict::Against),
        }
    }

    /// When silence means something; `None`: it does not, or not any more.
    pub fn deadline(&self) -> Option<Instant> {
        let wait = match self.role {
            Role::Trying if !self.is_welcome => self.waits.welcome(),
            Role::Trying if self.first_ack.is_none() => self.waits.acknowledgement(),
            Role::Trying => return None,
            // It failed by itself, whatever the service did: any Welcome, however late, decides.
            Role::Judging(Lack::Life) => return None,
            Role::Judging(Lack::Welcome) => self.waits.welcome(),
            Role::Judging(Lack::Acknowledgement) => self.waits.acknowledgement(),
        };
        Some(self.began + wait)
    }

    /// The verdict at the deadline.
    pub fn overdue(&self) -> Verdict {
        let (lack, what, wait) = match self.role {
            Role::Judging(_) => return Verdict::Excused,
            Role::Trying if self.is_welcome => (
                Lack::Acknowledgement,
                "none of its reports was acknowledged",
                self.waits.acknowledgement(),
            ),
            Role::Trying => (
                Lack::Welcome,
                "the service did not welcome it",
                self.waits.welcome(),
            ),
        };
        let reason = format!("{what} within {} s", wait.as_secs());
        Verdict::GoBack(Failed { lack, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WAITS: Waits = Waits {
        trial: Duration::from_mins(10),
        interval: Duration::from_secs(30),
    };

    fn watch(role: Role) -> (Watch, Instant) {
        let now = Instant::now();
        (Watch::new(role, WAITS, now), now)
    }

    #[test]
    fn a_version_is_approved_by_acknowledgements_over_the_whole_trial() {
        let (mut watch, began) = watch(Role::Trying);
        let heard = [
            (1, Sign::Welcome, None),
            (2, Sign::Acknowledgement, None),
            (300, Sign::Acknowledgement, None),
            (601, Sign::Acknowledgement, None),
            // A new connection alone proves nothing.
            (700, Sign::Welcome, None),
            (701, Sign::Acknowledgement, Some(Verdict::Approved)),
        ];
        for (at, sign, verdict) in heard {
            assert_eq!(watch.heard(sign, began + at * SECOND), verdict, "{at}");
            let silence_matters = watch.deadline().is_some();
            assert_eq!(silence_matters, at == 1, "{at}");
        }
    }

    #[test]
    fn without_a_welcome_or_an_acknowledgement_it_goes_back() {
        let (mut watch, began) = watch(Role::Trying);
        assert_eq!(watch.deadline(), Some(began + 200 * SECOND));
        let lack = |watch: &Watch| match watch.overdue() {
            Verdict::GoBack(failed) => failed.lack,
            other => panic!("{other:?}"),
        };
        assert_eq!(lack(&watch), Lack::Welcome);
        watch.heard(Sign::Welcome, began);
        assert_eq!(watch.deadline(), Some(began + 600 * SECOND));
        assert_eq!(lack(&watch), Lack::Acknowledgement);
    }

    #[test]
    fn the_version_before_counts_only_if_it_reaches_what_the_new_one_did_not() {
        let (mut welcome, began) = watch(Role::Judging(Lack::Welcome));
        assert_eq!(welcome.deadline(), Some(began + 200 * SECOND));
        assert_eq!(welcome.overdue(), Verdict::Excused);
        assert_eq!(welcome.heard(Sign::Welcome, began), Some(Verdict::Against));

        let (mut acknowledgement, began) = watch(Role::Judging(Lack::Acknowledgement));
        assert_eq!(acknowledgement.heard(Sign::Welcome, began), None);
        assert_eq!(acknowledgement.overdue(), Verdict::Excused);
        let heard = acknowledgement.heard(Sign::Acknowledgement, began);
        assert_eq!(heard, Some(Verdict::Against));

        let (mut life, began) = watch(Role::Judging(Lack::Life));
        assert_eq!(life.deadline(), None);
        let late = began + Duration::from_hours(99);
        assert_eq!(life.heard(Sign::Welcome, late), Some(Verdict::Against));
    }

    #[test]
    fn pauses_double_from_five_minutes_to_a_day() {
        let minutes: Vec<u64> = (0..12).map(|n| WAITS.pause(n).as_secs() / 60).collect();
        assert_eq!(minutes[..4], [5, 10, 20, 40]);
        assert_eq!(minutes[9..], [1440, 1440, 1440]);
        assert_eq!(WAITS.pause(u32::MAX), LONGEST_PAUSE);
    }
}
