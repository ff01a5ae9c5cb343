//! The privileges of the web application's database role: it reads everything except the
//! hashes of tokens, and writes only through our functions.
//!
//! Tables are listed one by one, so that a new table with a secret is not readable by
//! default. A test fails until a new table is listed.

use crate::{prelude::*, statements::locks};

const READABLE: &str = "schema_migrations ingest_instances sweep_pause enrolment_token_states \
    enrolment_token_uses hosts host_identifiers host_events agents agent_state agent_events \
    agent_keys agent_moves agent_numbers agent_releases agent_settings agent_shapes agent_trust agent_updates agent_hours cells \
    metric_gaps people_events host_vitals host_overview fleet_pictures fleet_presence trust_anchors \
    host_metrics host_metrics_hourly host_metric_parts host_metric_parts_hourly host_rollups \
    hosts_set_aside rollout_events rollout_skips rollouts sample_chunks sample_days sample_hours sample_hours_missing \
    sample_shapes settings_rules samples_open samples_to_roll_up samples_visible";

/// Functions that views call may be called by every role, so that a reader needs no more than SELECT on the view.
const CALLABLE: &str = "agent_seen approve_agent reject_agent revoke_agent reopen_agent add_enrolment_token \
     add_agent_release start_rollout set_rollout skip_host \
     rollout_place settings_members settings_effective set_settings_rule remove_settings_rule \
    revoke_enrolment_token retire_host label_hosts add_host_note add_people_event expire_hosts host_samples \
    host_chunks host_chunks_loose";

/// The state of the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebRole {
    Granted,
    /// It exists but lacks privileges.
    NotGranted,
    /// It does not exist.
    Missing,
}

impl Store {
    /// Grants `role` the privileges of the web application. Writes nothing if it has them.
    pub async fn web_role_grant(&self, role: &str) -> Result<WebRole> {
        self.run("web_role_grant", Maintenance, async |tx| {
            match look(&tx, role).await? {
                WebRole::NotGranted => {}
                found => return Ok(found),
            }
            tx.lock(locks::SCHEMA).await?;
            for statement in missing_grants(&tx, role).await? {
                tx.batch(&statement).await?;
            }
            Ok(WebRole::Granted)
        })
        .await
    }

    /// Whether `role` has its privileges. Changes nothing.
    pub async fn web_role_check(&self, role: &str) -> Result<WebRole> {
        self.run("web_role_check", Watch, async |tx| look(&tx, role).await)
            .await
    }

    /// Whether `role` may create objects in our schema.
    pub async fn role_may_create(&self, role: &str) -> Result<bool> {
        let sql = "-- role_may_create
            SELECT coalesce(bool_or(has_schema_privilege(oid, current_schema()::text, 'CREATE')), false)
              FROM pg_roles WHERE rolname = $1";
        let params = params![role];
        self.run_value("role_may_create", Watch, sql, &params).await
    }
}

async fn look(tx: &Tx, role: &str) -> Result<WebRole> {
    let sql = "-- web_role\nSELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)";
    if !tx.query_value::<bool>(sql, &params![role]).await? {
        return Ok(WebRole::Missing);
    }
    Ok(match missing_grants(tx, role).await?.is_empty() {
        true => WebRole::Granted,
        false => WebRole::NotGranted,
    })
}

/// The GRANT statements for the privileges that the role lacks, with names quoted by the server.
async fn missing_grants(tx: &Tx, role: &str) -> Result<Vec<String>> {
    let sql = "-- web_role
        SELECT format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), $1)
         WHERE NOT has_schema_privilege($1::name, current_schema(), 'USAGE')
         UNION ALL
        SELECT format('GRANT SELECT ON %s TO %I', oid::regclass, $1) FROM pg_class
         WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relname = ANY ($2)
           AND NOT has_table_privilege($1::name, oid, 'SELECT')
         UNION ALL
        SELECT format('GRANT SELECT (%I) ON enrolment_tokens TO %I', attname, $1) FROM pg_attribute
         WHERE attrelid = 'enrolment_tokens'::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'hash'
           AND NOT has_column_privilege($1::name, attrelid, attnum, 'SELECT')
         UNION ALL
        SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', oid::regprocedure, $1) FROM pg_proc
         WHERE pronamespace = quote_ident(current_schema())::regnamespace AND proname = ANY ($3)
           AND NOT has_function_privilege($1::name, oid, 'EXECUTE')";
    let words = |names: &'static str| -> Vec<&str> { names.split(' ').collect() };
    let (readable, callable) = (words(READABLE), words(CALLABLE));
    let params = params![role, readable, callable];
    let rows = tx.query(sql, &params).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
