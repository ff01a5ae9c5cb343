//! What a key is used for, and when the next step of its rotation may be taken.

use jiff::Timestamp;
use svc_ingest::signing::{JWKS_MAX_AGE, JWT_LIFETIME, LEEWAY};
use svc_store::SigningKeyUse;

use super::super::time::in_full;

pub fn describe(key: &SigningKeyUse, now: Timestamp) -> String {
    let SigningKeyUse {
        signers,
        acceptors,
        live,
        ..
    } = key;
    match key.signed_until {
        _ if *signers > 0 => format!("signs on {signers} of {live} instances"),
        Some(until) => old(until + JWT_LIFETIME + LEEWAY, now),
        None if acceptors < live => {
            format!(
                "is published by {acceptors} of {live} instances: the others must publish it too"
            )
        }
        None => new(key.accepted_since + JWKS_MAX_AGE, now),
    }
}

fn old(expired_at: Timestamp, now: Timestamp) -> String {
    match expired_at > now {
        true => format!(
            "may go after {}, when its last JWT has expired",
            in_full(expired_at)
        ),
        false => "may go now: its last JWT has expired".to_owned(),
    }
}

fn new(known_at: Timestamp, now: Timestamp) -> String {
    match known_at > now {
        true => format!(
            "may sign after {}, when every verifier knows it",
            in_full(known_at)
        ),
        false => "may sign now: every verifier knows it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, ToSpan};

    use super::*;

    #[test]
    fn the_next_step_of_a_rotation_follows_from_who_uses_the_key() {
        let now = Timestamp::now();
        let key = |signers, acceptors, since: i64, signed: Option<i64>| {
            let ago = |minutes: i64| now - SignedDuration::from_mins(minutes);
            let key = SigningKeyUse {
                kid: "k".to_owned(),
                signers,
                acceptors,
                live: 2,
                accepted_since: ago(since),
                signed_until: signed.map(ago),
            };
            describe(&key, now)
        };
        assert_eq!(key(1, 2, 0, Some(0)), "signs on 1 of 2 instances");
        assert!(key(0, 1, 0, None).starts_with("is published by 1 of 2"));
        assert!(key(0, 2, 4, None).starts_with("may sign after "));
        assert!(key(0, 2, 6, None).starts_with("may sign now"));
        assert!(key(0, 2, 60, Some(24 * 60)).starts_with("may go after "));
        assert!(key(0, 2, 60, Some(24 * 60 + 1)).starts_with("may go now"));
        let last = now + 24.hours() + 30.seconds();
        assert!(key(0, 2, 60, Some(0)).contains(&in_full(last)));
    }
}
