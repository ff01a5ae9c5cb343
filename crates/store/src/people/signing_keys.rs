//! The signing keys in use: which instances sign with a key, which accept it, and since or until when.

use crate::prelude::*;

record! {
    /// A key that at least one live instance signs with or accepts.
    #[derive(Debug, Clone, Serialize)]
    pub struct SigningKeyUse {
        pub kid: String,
        /// How many live instances sign with it.
        pub signers: i64,
        /// How many live instances publish and accept it, the signers included.
        pub acceptors: i64,
        /// How many instances are live.
        pub live: i64,
        /// When the last of the acceptors started.
        pub accepted_since: Timestamp,
        /// Until when an instance signed with it: now, if one still does. `None` if none did in the last 30 days.
        pub signed_until: Option<Timestamp>,
    }
}

impl Store {
    /// The keys in use, those with the most signers first. A lost instance counts as a signer until its lease expired.
    pub async fn signing_keys(&self) -> Result<Vec<SigningKeyUse>> {
        let sql = "-- signing_keys
            WITH instances AS (
                SELECT kid, extra_kids, started_at,
                       NOT fenced AND stopped_at IS NULL AND expires_at > now() AS live,
                       least(now(), expires_at) AS signed_until
                  FROM ingest_instances),
            uses AS (
                SELECT kid, live AS signs, live AS accepts, started_at, signed_until FROM instances
                 UNION ALL
                SELECT unnest(extra_kids), false, true, started_at, NULL FROM instances WHERE live)
            SELECT kid, count(*) FILTER (WHERE signs) AS signers,
                   count(*) FILTER (WHERE accepts) AS acceptors,
                   (SELECT count(*) FROM instances WHERE live) AS live,
                   max(started_at) FILTER (WHERE accepts) AS accepted_since,
                   max(signed_until) AS signed_until
              FROM uses GROUP BY kid HAVING bool_or(accepts)
             ORDER BY signers DESC, kid";
        self.read_all("signing_keys", Watch, sql, &[]).await
    }
}
