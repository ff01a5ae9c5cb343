//! Rollups of samples, and the books of an agent as the commands print them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use svc_ingest::config::Timing;
use svc_proto::v1::{Disk, Gap, Sample};
use svc_testkit::{
    AUTO, ActiveAgent, FakeAgent, Instance, Site, assert_contains, machine, metric_becomes, sample,
    token, wire_time,
};

use crate::commands::{json, output_of};

/// A sample taken some time ago.
fn sample_of(seq: u64, ago: SignedDuration, rx: u64) -> anyhow::Result<Sample> {
    let mut sample = sample(seq);
    sample.sampled_at = Some(wire_time(Timestamp::now().checked_sub(ago)?));
    if let Some(vitals) = &mut sample.vitals {
        vitals.network_rx_bytes = rx;
        vitals.disks = vec![Disk {
            mount_point: "/srv".into(),
            total_bytes: 1000,
            used_bytes: 915,
            ..Disk::default()
        }];
    }
    Ok(sample)
}

#[tokio::test]
async fn samples_are_rolled_up_and_the_books_are_shown() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(brisk).start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent.jwt(instance.grpc, &token(&site, AUTO).await?).await?;
    let mut beat = agent.heartbeat(instance.grpc, &jwt).await?;
    let (two_hours, now) = (SignedDuration::from_hours(2), SignedDuration::ZERO);
    let mut bad = sample_of(3, now, 0)?;
    if let Some(vitals) = &mut bad.vitals {
        vitals.cpu_percent = f64::NAN;
    }
    let samples = vec![
        sample_of(1, two_hours, 10)?,
        sample_of(2, two_hours, 25)?,
        bad,
        sample_of(6, now, 30)?,
    ];
    let lost = Gap {
        first_seq: 4,
        last_seq: 5,
        reason: "spool full".into(),
    };
    beat.report(samples, vec![lost]).await?;
    beat.acked_up_to(6).await?;

    let sum = "SELECT sum(sample_count), max(network_rx_bytes_increase), max(fullest_disk_percent), max(fullest_disk_mount_point)
                 FROM host_metrics_hourly";
    site.becomes(sum, "3|15|91.5|/srv").await?;
    hour_passes(&site).await?;
    site.becomes("SELECT sum(sample_count) FROM host_rollups", "3")
        .await?;
    let open = "SELECT count(*) FROM samples_open";
    site.becomes(open, "0").await?;
    site.becomes(sum, "3|15|91.5|/srv").await?;

    let shown = json(&site, &["host", "show", "web-1"]).await?;
    assert_eq!(shown["fullest_disk_percent"], 91);
    assert_eq!(shown["fullest_disk_mount_point"], "/srv");
    let books = &shown["books"][0];
    let counts = ["sent", "stored", "rejected", "gaps"].map(|name| books[name].as_i64());
    assert_eq!(counts, [6, 3, 1, 2].map(Some));
    assert_eq!(books["balanced"], true);
    let missing: Vec<String> = books["missing"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|gap| {
            format!(
                "{}-{} {} {}",
                gap["first_seq"], gap["last_seq"], gap["kind"], gap["reason"]
            )
        })
        .collect();
    assert_eq!(
        missing,
        [
            r#"4-5 "declared" "spool full""#,
            r#"3-3 "rejected" "cpu_percent is not between 0 and 100""#
        ]
    );
    let table = output_of(&site, &["host", "show", "web-1"]).await?;
    assert_contains(&table, "6 sent = 3 stored + 1 rejected + 2 gaps");
    assert_contains(&table, "spool full");

    site.psql("DELETE FROM sample_chunks WHERE first_seq = 6")
        .await?;
    let shown = json(&site, &["host", "show", "web-1"]).await?;
    assert_eq!(shown["books"][0]["balanced"], false, "a row is gone");
    let table = output_of(&site, &["host", "show", "web-1"]).await?;
    assert_contains(&table, "NOT what the tables hold");
    Ok(())
}

/// The chunks of the first host are refused as PostgreSQL refuses what it cannot allocate.
const FIRST_HOST_FAILS: &str = "
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.host_no = (SELECT host_no FROM host_vitals JOIN hosts ON id = host_id WHERE hostname = 'web-1') THEN
            RAISE EXCEPTION 'invalid memory alloc request size 1073741824' USING ERRCODE = 'XX000';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail BEFORE INSERT ON sample_chunks FOR EACH ROW EXECUTE FUNCTION fail()";

/// Lets an hour pass on the clock by which samples arrive.
async fn hour_passes(site: &Site) -> anyhow::Result<()> {
    let sql = "
        CREATE TABLE IF NOT EXISTS hours_passed (n integer GENERATED ALWAYS AS IDENTITY);
        INSERT INTO hours_passed DEFAULT VALUES;
        CREATE OR REPLACE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS
            'SELECT now() + (SELECT count(*) FROM hours_passed) * interval ''1 hour'''";
    site.psql(sql).await?;
    Ok(())
}

fn brisk(timing: &mut Timing) {
    timing.compaction = Duration::from_millis(200);
    timing.fleet_gauges = Duration::from_millis(200);
}

/// The store of one sample of each of two hosts.
async fn two_hosts(site: &Site, instance: &Instance) -> anyhow::Result<()> {
    for number in [1, 2] {
        let agent = ActiveAgent::new(site, instance.grpc, number).await?;
        let mut beat = agent.heartbeat().await?;
        beat.report(vec![sample(1)], vec![]).await?;
        beat.acked_up_to(1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_host_that_cannot_be_compacted_is_set_aside_and_stops_no_other_host() -> anyhow::Result<()>
{
    let site = Site::new().await?;
    let instance = site.instance().timing(brisk).start().await?;
    site.psql(FIRST_HOST_FAILS).await?;
    two_hosts(&site, &instance).await?;
    hour_passes(&site).await?;
    let stored = "SELECT string_agg(hostname, ' ' ORDER BY hostname)
                    FROM host_rollups JOIN hosts ON id = host_id";
    site.becomes(stored, "web-2").await?;
    let aside = "SELECT hostname, reason LIKE '%memory alloc%', tries > 1
                   FROM hosts_set_aside JOIN host_vitals USING (host_no) JOIN hosts ON id = host_id";
    site.becomes(aside, "web-1|t|t").await?;
    let seen = "SELECT count(*), count(DISTINCT host_id) FROM host_metrics";
    site.becomes(seen, "2|2").await?;
    let status = output_of(&site, &["status"]).await?;
    assert_contains(&status, "1 hours of hosts could not be compacted");
    metric_becomes(instance.http, "hosts_set_aside", |hosts| hosts == 1.0).await?;
    site.psql("DROP TRIGGER fail ON sample_chunks").await?;
    site.becomes(stored, "web-1 web-2").await?;
    site.becomes("SELECT count(*) FROM hosts_set_aside", "0")
        .await?;
    site.becomes(seen, "2|2").await?;
    let open = "SELECT count(*) FROM samples_open";
    site.becomes(open, "0").await?;
    instance.stop().await
}

/// The gauges come from the tables, not from passes that succeed.
#[tokio::test]
async fn the_lag_is_seen_while_no_pass_can_compact() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(brisk).start().await?;
    site.psql("ALTER TABLE sample_hours RENAME COLUMN finished_xid TO gone")
        .await?;
    two_hosts(&site, &instance).await?;
    hour_passes(&site).await?;
    hour_passes(&site).await?;
    metric_becomes(instance.http, "compaction_lag_seconds", |lag| lag > 1800.0).await?;
    site.psql("ALTER TABLE sample_hours RENAME COLUMN gone TO finished_xid")
        .await?;
    metric_becomes(instance.http, "compaction_lag_seconds", |lag| lag == 0.0).await?;
    let seen = "SELECT count(*), (SELECT sum(sample_count) FROM host_rollups) FROM host_metrics";
    site.becomes(seen, "2|2").await?;
    instance.stop().await
}
