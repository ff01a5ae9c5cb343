//! The digest of an instance's sessions is the same in PostgreSQL and here.

use anyhow::Result;
use svc_store::{AgentId, SessionDigest};
use uuid::Uuid;

use crate::support::*;

const SESSIONS: &str = "
    INSERT INTO hosts (hostname) SELECT 'h' || n FROM generate_series(1, 50) n;
    INSERT INTO agents (host_id, key, status) SELECT id, sha256(id::text::bytea), 'active' FROM hosts;
    UPDATE agent_state SET epoch = (random() * 9)::int + CASE WHEN random() < 0.1 THEN 4294967296 ELSE 0 END,
           instance_id = CASE WHEN random() < 0.8 THEN '00000000-0000-4000-8000-000000000001'::uuid
                              ELSE '00000000-0000-4000-8000-000000000002'::uuid END";

#[tokio::test]
async fn the_digest_of_stored_sessions_is_that_of_held_ones() -> Result<()> {
    let store = migrated().await?;
    let instance = Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001);
    let none = store.sessions_digest(instance).await?;
    assert_eq!(none, SessionDigest::default());
    store.sql(SESSIONS).await?;
    let stored = store.sessions_stored(instance).await?;
    let held: Vec<(AgentId, i64)> = stored
        .iter()
        .map(|session| (session.agent_id, session.epoch))
        .collect();
    let ours = SessionDigest::of(held.iter().copied());
    assert_eq!(store.sessions_digest(instance).await?, ours);
    assert_ne!(SessionDigest::of(held[1..].iter().copied()), ours);
    let replaced = held
        .iter()
        .map(|(agent, epoch)| (*agent, epoch + i64::from(*agent == held[0].0)));
    assert_ne!(SessionDigest::of(replaced), ours);

    let revoke = format!("SELECT revoke_agent('{}', 'ann')", held[0].0);
    store.sql(&revoke).await?;
    assert_eq!(store.sessions_digest(instance).await?.doubtful, 1);
    let contest = format!("SELECT agent_contest('{}')", held[1].0);
    store.sql(&contest).await?;
    let doubtful = SessionDigest {
        doubtful: 2,
        ..ours
    };
    assert_eq!(store.sessions_digest(instance).await?, doubtful);
    Ok(())
}
