//! The state of a token is the same everywhere: in the view, in both lookups of a
//! registration, and in the statement that takes a use. What it does is decided by one function.

use std::time::Duration;

use anyhow::{Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use proptest::prelude::*;
use svc_store::{StoreError, TokenState};

use crate::support::{TestStore, migrated, property, sqlstate};

/// A token around the borders of its validity.
#[derive(Clone, Debug)]
struct Token {
    secret: u64,
    max_uses: i32,
    uses: i32,
    /// When it expires, in seconds from now. `Some(0)` has expired when it is read.
    expires_in: Option<i32>,
    revoked: bool,
}

prop_compose! {
    fn any_token()(
        secret in any::<u64>(),
        max_uses in 1..=3_i32,
        left in 0..=2_i32,
        expires_in in prop::option::of(prop_oneof![Just(-3600), Just(0), Just(3600)]),
        revoked in prop::bool::weighted(0.3),
    ) -> Token {
        Token { secret, max_uses, uses: (max_uses - left).max(0), expires_in, revoked }
    }
}

impl Token {
    /// The rule, written a second time.
    fn expected(&self) -> &'static str {
        match self {
            Token { revoked: true, .. } => "revoked",
            Token {
                expires_in: Some(..=0),
                ..
            } => "expired",
            Token { uses, max_uses, .. } if uses == max_uses => "exhausted",
            _ => "active",
        }
    }

    fn hash(&self) -> [u8; 32] {
        let hash = digest(&SHA256, self.secret.to_string().as_bytes());
        hash.as_ref().try_into().expect("32 bytes")
    }

    /// Inserts the token. Returns its state in the view, in the same transaction, where
    /// `now()` is still the moment of `expires_in`.
    async fn insert(&self, store: &TestStore) -> Result<String> {
        let Token {
            secret,
            max_uses,
            uses,
            ..
        } = self;
        let expires = self.expires_in.map(|s| format!("now() + interval '{s} s'"));
        let expires = expires.unwrap_or("NULL".into());
        let revoked = if self.revoked { "now()" } else { "NULL" };
        let sql = format!(
            "DELETE FROM enrolment_tokens;
             INSERT INTO enrolment_tokens (hash, max_uses, uses, expires_at, revoked_at)
             VALUES (sha256('{secret}'), {max_uses}, {uses}, {expires}, {revoked});
             SELECT state FROM enrolment_token_states"
        );
        store.sql(&sql).await
    }

    async fn check(&self, store: &TestStore) -> Result<()> {
        let (hash, expected) = (self.hash(), self.expected());
        let inserted = self.insert(store).await?;
        ensure!(inserted == expected, "the view: {inserted}");
        let asked = [(&[0; 32], None), (&[0; 32], Some(&hash))];
        let lookups = store.registrations_lookup(&asked).await?;
        ensure!(
            lookups.len() == 2 && lookups[0].token.is_none(),
            "{lookups:?}"
        );
        let looked_up = lookups[1].token.as_ref().map(name);
        ensure!(looked_up == Some(expected), "the lookup: {looked_up:?}");
        let token = store.registration_run("read", async |tx| {
            tx.token_by_hash(&hash, None, Duration::ZERO).await
        });
        let token = token.await?.expect("the token exists");
        ensure!(name(&token.state) == expected, "read: {:?}", token.state);
        let spent =
            store.registration_run("spend", async |tx| tx.token_spend(token.id, &hash).await);
        let spent = match spent.await {
            Ok(()) => true,
            Err(StoreError::Conflict(None)) => false,
            Err(error) => return Err(error.into()),
        };
        ensure!(spent == (expected == "active"), "taken: {spent}");
        let uses: i32 = store
            .sql("SELECT uses FROM enrolment_tokens")
            .await?
            .parse()?;
        ensure!(uses == self.uses + i32::from(spent), "uses: {uses}");
        Ok(())
    }
}

fn name(state: &TokenState) -> &'static str {
    match state {
        TokenState::Active => "active",
        TokenState::Expired { .. } => "expired",
        TokenState::Exhausted { .. } => "exhausted",
        TokenState::Revoked { .. } => "revoked",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_the_lookups_and_the_spending_agree_on_the_state_of_a_token() -> Result<()> {
    let store = migrated().await?;
    let check = async move |token: Token| token.check(&store).await;
    property(64, any_token(), check).await
}

#[tokio::test]
async fn postgresql_inlines_the_functions_for_the_state_and_the_effect_of_a_token() -> Result<()> {
    let store = migrated().await?;
    let explain = "EXPLAIN (VERBOSE, COSTS OFF)
                   UPDATE enrolment_tokens token SET uses = uses + 1
                    WHERE enrolment_token_state(token) = 'active' AND enrolment_token_effect(token, NULL, NULL, 0) = 'activate'";
    let plan = store.sql(explain).await?;
    assert!(!plan.contains("enrolment_token_state"), "{plan}");
    assert!(!plan.contains("enrolment_token_effect"), "{plan}");
    Ok(())
}

#[tokio::test]
async fn a_token_replaces_only_an_agent_that_has_been_offline_for_long_enough() -> Result<()> {
    const INCUMBENT: &str = "'a0000000-0000-4000-8000-000000000001'";
    let store = migrated().await?;
    let long_enough = Some("now() - interval '60 s'");
    for (auto_approve, allow_reinstall, offline_since, expected) in [
        (true, false, None, "activate"),
        (false, true, None, "leave pending"),
        (true, true, long_enough, "replace"),
        (true, false, long_enough, "conflict"),
        (false, true, long_enough, "conflict"),
        (true, true, Some("now() - interval '59 s'"), "conflict"),
        (true, true, Some("now() + interval '1 day'"), "conflict"),
        (true, true, Some("NULL"), "conflict"),
    ] {
        let machine = offline_since.map(|since| format!("{INCUMBENT}, {since}"));
        let machine = machine.unwrap_or("NULL, NULL".into());
        let token =
            format!(r#"{{"auto_approve": {auto_approve}, "allow_reinstall": {allow_reinstall}}}"#);
        let sql = format!(
            "SELECT enrolment_token_effect(jsonb_populate_record(NULL::enrolment_tokens, '{token}'), {machine}, 60)"
        );
        assert_eq!(store.sql(&sql).await?, expected, "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_that_another_program_adds_is_refused_with_the_documented_sqlstates() -> Result<()>
{
    let store = migrated().await?;
    store
        .sql("SELECT add_enrolment_token(sha256('known'), 'web', 'ann')")
        .await?;
    for (code, arguments) in [
        ("SV409", "sha256('known'), 'web', 'ann'"),
        ("SV400", "'\\x00', 'web', 'ann'"),
        ("SV400", "NULL, 'web', 'ann'"),
        ("SV400", "sha256('x'), NULL, 'ann'"),
        ("SV400", "sha256('x'), repeat('x', 256), 'ann'"),
        ("SV400", "sha256('x'), 'web', NULL"),
        ("SV400", "sha256('x'), 'web', 'ann', 0"),
        ("SV400", "sha256('x'), 'web', 'ann', NULL"),
        ("SV400", "sha256('x'), 'web', 'ann', labels => NULL"),
        ("SV400", "sha256('x'), 'web', 'ann', labels => '[]'"),
    ] {
        let sql = format!("SELECT add_enrolment_token({arguments})");
        let error = store.sql(&sql).await.expect_err(&sql);
        ensure!(sqlstate(&error)? == code, "{sql}: {error:#}");
    }
    let never = "SELECT add_enrolment_token(sha256('never'), '', '', 5, NULL, '{\"a\": \"b\"}')";
    store.sql(never).await?;
    let tokens = store.sql("SELECT count(*) FROM enrolment_tokens").await?;
    ensure!(tokens == "2", "{tokens}");
    Ok(())
}
