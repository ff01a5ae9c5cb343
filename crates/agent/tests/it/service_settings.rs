//! Settings that the service sends to an agent while it runs. The service is a hostile one, because the real one checks what it sends.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use svc_proto::v1::{
    AgentSettings, LogLevel, Sample, SettingsState, TextList, UpdatePolicy, UpdateStep, Vitals,
};
use svc_testkit::{Site, assert_contains, eventually};

use crate::{
    installation::Installed,
    updates::{host::Host, service::Service},
};

const FILE: &str = "settings";

async fn installed() -> Result<(Site, Service, Installed)> {
    let site = Site::new().await?;
    let service = Service::start(&site).await?;
    let installed = Installed::new(&site, 1, &[service.address], "")?;
    Ok((site, service, installed))
}

fn settings(hash: u8) -> AgentSettings {
    AgentSettings {
        hash: vec![hash; 32],
        ..AgentSettings::default()
    }
}

fn list(texts: &[&str]) -> Option<TextList> {
    let values = texts.iter().map(ToString::to_string).collect();
    Some(TextList { values })
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn log(level: &str, after: Duration) -> Option<LogLevel> {
    Some(LogLevel {
        level: level.into(),
        until: Some((SystemTime::now() + after).into()),
    })
}

fn update(on: bool, hours: &str) -> Option<UpdatePolicy> {
    let hours = hours.into();
    Some(UpdatePolicy { on, hours })
}

/// Waits until the agent says that it runs with these, and returns what it says.
async fn runs_with(service: &Service, hash: u8) -> Result<SettingsState> {
    let is = |state: &SettingsState| state.running_hash == [hash; 32];
    let newest = || service.seen().stated.last().cloned();
    eventually("the settings are in force", async || {
        newest().as_ref().is_some_and(is)
    })
    .await
    .with_context(|| format!("{:?}", service.seen().stated))?;
    newest().context("a state")
}

/// Waits until the newest two samples are so far apart, and returns the vitals of the last one.
async fn interval_becomes(service: &Service, is: impl Fn(f64) -> bool) -> Result<Vitals> {
    let at = |sample: &Sample| {
        sample
            .sampled_at
            .map(|at| at.seconds as f64 + f64::from(at.nanos) / 1e9)
    };
    let mut newest = None;
    eventually("the interval changes", async || {
        let seen = service.seen();
        let Some([one, other]) = seen.samples.last_chunk() else {
            return false;
        };
        newest.clone_from(&other.vitals);
        is(at(other).unwrap_or_default() - at(one).unwrap_or_default())
    })
    .await?;
    newest.context("vitals")
}

/// Waits for a sample that is taken from now on.
async fn sample(service: &Service) -> Result<Vitals> {
    let next = service.seen().samples.len() + 1; // One may be on its way.
    eventually("a sample", async || service.seen().samples.len() > next).await?;
    let newest = service.seen().samples.last().cloned();
    newest.context("a sample")?.vitals.context("vitals")
}

#[tokio::test]
async fn settings_are_in_force_without_a_restart_and_survive_one() -> Result<()> {
    let (_site, service, installed) = installed().await?;
    let agent = installed.start()?;
    let vitals = interval_becomes(&service, |seconds| seconds < 4.0).await?;
    ensure!(vitals.cpu_steal_ms.is_some() && !vitals.interfaces.is_empty());
    ensure!(service.seen().hellos[0].settings == Some(SettingsState::default()));

    service.settings(AgentSettings {
        interval: seconds(5),
        left_out: list(&["cpu_steal_ms", "disks"]),
        ignored_interfaces: list(&["*"]),
        spool_bytes: Some(1 << 20),
        ..settings(1)
    });
    let state = runs_with(&service, 1).await?;
    ensure!(state.received_hash == [1; 32] && state.refused.is_empty());
    let vitals = interval_becomes(&service, |seconds| seconds >= 4.0).await?;
    ensure!(vitals.cpu_steal_ms.is_none() && vitals.disks.is_empty());
    ensure!(vitals.interfaces.is_empty() && vitals.network_rx_bytes == 0);
    ensure!(service.seen().hellos.len() == 1, "it has reconnected");

    let file = installed.path().join(FILE);
    let inode = fs::metadata(&file)?.ino();
    agent.stop().await?;
    let agent = installed.start()?;
    eventually("it is back", async || service.seen().hellos.len() == 2).await?;
    let hello = service.seen().hellos[1].clone();
    ensure!(hello.settings == Some(state), "{hello:?}");
    installed
        .status_becomes("the interval is kept", |status| {
            status.connection.connected && status.interval_seconds == Some(5)
        })
        .await?;
    // The Welcome had them again.
    let first = service.seen().samples.len();
    eventually("a sample", async || service.seen().samples.len() > first).await?;
    ensure!(fs::metadata(&file)?.ino() == inode, "it was written again");

    // They are complete each time: what is absent is the machine's own again.
    service.settings(settings(2));
    runs_with(&service, 2).await?;
    sample(&service).await?;
    let vitals = interval_becomes(&service, |seconds| seconds < 4.0).await?;
    ensure!(vitals.cpu_steal_ms.is_some() && !vitals.interfaces.is_empty());
    agent.stop().await
}

#[tokio::test]
async fn a_refused_field_keeps_the_rest_and_status_shows_both() -> Result<()> {
    let (_site, service, mut installed) = installed().await?;
    installed.settings = vec![("pinned", "log, ignored_mounts".into())];
    let agent = installed.start()?;
    service.settings(AgentSettings {
        interval: seconds(1),
        left_out: list(&["cpu_steal_ms"]),
        log: log("trace", Duration::from_secs(60)),
        ..settings(1)
    });
    let state = runs_with(&service, 1).await?;
    let refused: Vec<_> = state.refused.iter().map(|one| one.field.as_str()).collect();
    ensure!(refused == ["interval", "log"], "{state:?}");
    ensure!(sample(&service).await?.cpu_steal_ms.is_none());
    installed
        .status_becomes("the status has it", |status| {
            status.rare.settings.len() == 4
        })
        .await?;
    let shown = installed.run(&["status"], 0).await?.stdout;
    for line in [
        "left_out: cpu_steal_ms, from the service",
        "ignored_mounts: pinned in agent.toml",
        "interval: refused: is not between 5 s and 1 h",
        "log: refused: pinned in agent.toml",
        "updates",
    ] {
        assert_contains(&shown, line);
    }

    // Nothing of these can be used; the agent says that it has received them.
    service.settings(AgentSettings {
        ignored_mounts: list(&["x".repeat(128).as_str(); 20]),
        ..settings(2)
    });
    let is = |state: &SettingsState| {
        state.running_hash == [1; 32] && state.received_hash == [2; 32] && state.refused.len() == 3
    };
    eventually("it says so", async || {
        service.seen().stated.last().is_some_and(is)
    })
    .await?;
    agent.stop().await
}

#[tokio::test]
async fn a_restored_snapshot_says_the_old_hash_and_a_damaged_file_none() -> Result<()> {
    let (_site, service, installed) = installed().await?;
    let agent = installed.start()?;
    service.settings(settings(1));
    runs_with(&service, 1).await?;
    agent.stop().await?; // Only then is everything on disk.
    let file = installed.path().join(FILE);
    let snapshot = fs::read(&file)?;

    let agent = installed.start()?;
    service.settings(settings(2));
    runs_with(&service, 2).await?;
    agent.stop().await?;
    for (content, said) in [(snapshot, vec![1; 32]), (vec![0xff; 64], vec![])] {
        fs::write(&file, content)?;
        let before = service.seen().hellos.len();
        let agent = installed.start()?;
        eventually("it is back", async || service.seen().hellos.len() > before).await?;
        let hello = service.seen().hellos[before].clone();
        let state = hello.settings.context("a state")?;
        ensure!(state.running_hash == said, "{state:?}");
        runs_with(&service, 2).await?;
        agent.stop().await?;
    }
    Ok(())
}

/// A line of the level debug is the last one of an agent that stops.
#[tokio::test]
async fn a_log_level_holds_until_its_end() -> Result<()> {
    const DEBUG: &str = "Goodbye was sent";
    for (after, ends) in [
        (Duration::from_secs(600), false),
        (Duration::from_secs(4), true),
    ] {
        let (_site, service, installed) = installed().await?;
        let agent = installed.process(&["run"])?.start()?;
        eventually("it connects", async || !service.seen().hellos.is_empty()).await?;
        service.settings(AgentSettings {
            log: log("debug", after),
            ..settings(1)
        });
        agent.logs_contain("the service sets the log level").await?;
        if ends {
            agent
                .logs_contain("the log level is this machine's own again")
                .await?;
        }
        agent.stop().await?;
        ensure!(agent.logs().contains(DEBUG) != ends, "{}", agent.logs());
    }
    Ok(())
}

#[tokio::test]
async fn updates_wait_while_they_are_off_and_for_their_hours() -> Result<()> {
    let host = Host::new().await?;
    let _agent = host.supervise()?;
    host.runs("1.0.0").await?;
    host.service.settings(AgentSettings {
        update: update(false, ""),
        ..settings(1)
    });
    runs_with(&host.service, 1).await?;
    host.service.offer(host.good(7, "1.1.0")?);
    eventually("the agent says why", async || {
        let seen = host.service.seen();
        let is_off = |reason: &str| reason.contains("off in the settings of the service");
        seen.states.iter().any(|state| is_off(&state.reason))
    })
    .await?;

    let elsewhen = Timestamp::now()
        .to_zoned(TimeZone::UTC)
        .checked_add(3.days())?;
    let hours = format!("{} 00:00-23:59", elsewhen.strftime("%a"));
    host.service.settings(AgentSettings {
        update: update(true, &hours),
        ..settings(2)
    });
    host.reports(UpdateStep::Staged, 7).await?;
    for _ in 0..3 {
        sample(&host.service).await?;
    }
    ensure!(host.version() == "1.0.0" && host.service.seen().goodbyes.is_empty());

    host.service.settings(AgentSettings {
        update: update(true, ""),
        ..settings(3)
    });
    host.reports(UpdateStep::Trying, 7).await?;
    ensure!(host.version() == "1.1.0");
    Ok(())
}
