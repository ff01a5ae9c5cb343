//! `svc-fleet scenario`: a system of its own, something that happens to it, and what must hold.
//!
//! The audit of the books is an expectation of every scenario.

use std::{
    fmt,
    io::{Write, stdout},
    time::Duration,
};

use clap::ValueEnum;
use svc_testkit::AuditReport;
use tokio::time::sleep;

use crate::{
    fleet::{Fleet, Totals, format_errors, format_time, note},
    lab::{Lab, Settings, instances_for},
    plan::Plan,
    restart::{Ending, GRACES, Restarted, restart_all},
    run::duration,
};

/// The longest wait with `--brief`.
const BRIEF_WAIT: Duration = Duration::from_secs(6);
/// Agents per second that a small machine can connect beside its other work.
const ARRIVALS_PER_SECOND: f64 = 300.0;
const SHORTEST_RAMP: Duration = Duration::from_secs(2);
/// Longer than any wait may take. The scenario's own limits are checked at its end.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Until the agents report evenly, before something happens to them.
const SETTLE_TIME: Duration = Duration::from_secs(15);
const STEADY_TIME: Duration = Duration::from_secs(60);

const CONNECTED_WITHIN: Duration = Duration::from_secs(60);
const ACK_P99: Duration = Duration::from_secs(1);
const BACK_AFTER_STORM: Duration = Duration::from_secs(60);
const UP_WITHIN: Duration = Duration::from_secs(5);
/// With `--brief`: less than forever, which is how long a site did not start.
const BRIEF_UP_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A fleet reports to two instances without faults
    Steady,
    /// All connections are cut at the same time, and all agents reconnect at once
    Storm,
    /// The only instance is stopped and started again, then killed and started again
    Restart,
    /// All of three instances are stopped at once and started again, then killed and started again
    RestartAll,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ScenarioArgs {
    /// What happens
    #[arg(value_enum)]
    scenario: Scenario,
    /// Number of virtual agents
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    agents: u32,
    /// Time between two reports of an agent; default: 5 s, and 1 s with --brief
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Shorten every wait and check no times, to see only whether it works
    #[arg(long)]
    brief: bool,
}

/// What happened while a scenario ran.
#[derive(Debug, Default)]
struct Observations {
    agents: u64,
    /// From the end of the ramp until all agents had a stream.
    connected: Duration,
    /// From the cut of all connections until all agents had a stream and a new acknowledgement.
    after_storm: Option<Duration>,
    restarts: Vec<Restarted>,
    offline: u64,
    totals: Totals,
    books: AuditReport,
}

#[derive(Debug)]
struct Check {
    held: bool,
    name: &'static str,
    found: String,
}

impl Scenario {
    fn least_instances(self) -> usize {
        match self {
            Scenario::Restart => 1,
            Scenario::Steady | Scenario::Storm => 2,
            Scenario::RestartAll => 3,
        }
    }
}

/// Returns whether all expectations held.
pub async fn run(args: ScenarioArgs) -> anyhow::Result<bool> {
    let observed = observe(&args).await?;
    let checks = checks(&args, &observed);
    for check in &checks {
        writeln!(stdout(), "  {check}")?;
    }
    Ok(checks.iter().all(|check| check.held))
}

async fn observe(args: &ScenarioArgs) -> anyhow::Result<Observations> {
    let interval = args.interval();
    let mut lab = Lab::start(Settings {
        instances: instances_for(args.agents).max(args.scenario.least_instances()),
        interval,
        durable: false,
    })
    .await?;
    let needed = Duration::from_secs_f64(f64::from(args.agents) / ARRIVALS_PER_SECOND);
    let plan = Plan {
        ramp: needed.max(SHORTEST_RAMP),
        ..lab.plan(args.agents).await?
    };
    let ramp = plan.ramp;
    let fleet = Fleet::start(plan, 0)?;
    let connected = fleet.all_connected(ramp + TIMEOUT).await?;
    note(&format!("all connected after {}", format_time(connected)));
    fleet.open_window();
    let mut observed = Observations {
        agents: fleet.agents(),
        connected: connected.saturating_sub(ramp),
        ..Observations::default()
    };
    sleep(args.shortened(SETTLE_TIME)).await;
    match args.scenario {
        Scenario::Steady => sleep(args.shortened(STEADY_TIME)).await,
        Scenario::Storm => {
            fleet.order(|orders| orders.cuts += 1)?;
            let mark = fleet.mark()?;
            observed.after_storm = Some(fleet.all_back(mark, TIMEOUT).await?);
            sleep(args.shortened(SETTLE_TIME)).await;
        }
        Scenario::Restart | Scenario::RestartAll => {
            for (ending, watch) in [(Ending::Stop, SETTLE_TIME), (Ending::Kill, GRACES)] {
                let watch = args.shortened(watch);
                let restarted = restart_all(&mut lab, &fleet, ending, interval, watch);
                observed.restarts.push(restarted.await?);
            }
        }
    }
    fleet.settle(TIMEOUT).await?;
    observed.offline = lab.times_offline().await?;
    let outcome = fleet.finish().await?;
    let url = lab.database_url();
    observed.books = AuditReport::of(&outcome.balances, Some(&url), observed.agents).await?;
    observed.totals = outcome.totals;
    Ok(observed)
}

impl ScenarioArgs {
    fn interval(&self) -> Duration {
        let default = if self.brief { 1 } else { 5 };
        self.interval.unwrap_or(Duration::from_secs(default))
    }

    fn shortened(&self, time: Duration) -> Duration {
        if self.brief {
            time.min(BRIEF_WAIT)
        } else {
            time
        }
    }
}

/// Every expectation of the scenario. A brief run has none that a slow machine could fail.
fn checks(args: &ScenarioArgs, observed: &Observations) -> Vec<Check> {
    let totals = &observed.totals;
    let mut checks = vec![books(&observed.books)];
    let offline = observed.offline;
    if args.scenario != Scenario::Storm {
        checks.push(Check::new("went offline", offline == 0, offline));
    }
    if args.scenario == Scenario::Steady {
        let streams = totals.counts.streams;
        let (errors, rejected) = (format_errors(&totals.errors), totals.counts.rejected);
        checks.extend([
            Check::new("every stream kept", streams == observed.agents, streams),
            Check::new("no errors", totals.errors.is_empty(), errors),
            Check::new("samples rejected", rejected == 0, rejected),
        ]);
    }
    let up_within = if args.brief {
        BRIEF_UP_WITHIN
    } else {
        UP_WITHIN
    };
    let up = observed.restarts.iter().map(|restarted| restarted.up);
    checks.extend(up.map(|up| Check::within("all serve again", up, up_within)));
    if args.brief {
        return checks;
    }
    let connected = observed.connected;
    checks.push(Check::within("all connected", connected, CONNECTED_WITHIN));
    if args.scenario == Scenario::Steady {
        let p99 = totals.window.ack.quantile(0.99);
        checks.push(Check::within("acknowledgement p99", p99, ACK_P99));
    }
    let storm = observed.after_storm.map(|back| (back, BACK_AFTER_STORM));
    let restarts = observed.restarts.iter();
    let restarts = restarts.map(|restarted| (restarted.back, restarted.back_within));
    let back = |(back, most)| Check::within("all back and acknowledged", back, most);
    checks.extend(storm.into_iter().chain(restarts).map(back));
    checks
}

fn books(books: &AuditReport) -> Check {
    let tables = books.tables.unwrap_or_default();
    let found = format!(
        "{} taken, {} acknowledged, {} rejected; {} missing, {} stored twice, {} not in the books, {} gaps, {} broken promises",
        books.taken,
        books.acked,
        books.rejected,
        tables.missing,
        tables.twice,
        tables.unbooked,
        tables.gaps,
        books.broken
    );
    let held = books.balance() && books.acked > 0 && books.open == 0 && books.tables.is_some();
    Check::new("the books balance", held, found)
}

impl Check {
    fn new(name: &'static str, held: bool, found: impl fmt::Display) -> Check {
        let found = found.to_string();
        Check { held, name, found }
    }

    fn within(name: &'static str, found: Duration, most: Duration) -> Check {
        let text = format!("{}, at most {}", format_time(found), format_time(most));
        Check::new(name, found <= most, text)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.held { "pass" } else { "FAIL" };
        write!(f, "{verdict}  {}: {}", self.name, self.found)
    }
}

#[cfg(test)]
mod tests {
    use svc_testkit::Tables;

    use super::*;

    const SLOW: Duration = Duration::from_mins(5);

    fn good_run(scenario: Scenario) -> Observations {
        let mut observed = Observations {
            agents: 5,
            books: AuditReport {
                agents: 5,
                expected: 5,
                taken: 10,
                acked: 10,
                tables: Some(Tables::default()),
                ..AuditReport::default()
            },
            ..Observations::default()
        };
        observed.totals.counts.streams = 5;
        match scenario {
            Scenario::Steady => {}
            Scenario::Storm => observed.after_storm = Some(Duration::ZERO),
            Scenario::Restart | Scenario::RestartAll => observed.restarts.push(Restarted {
                back_within: UP_WITHIN,
                ..Restarted::default()
            }),
        }
        observed
    }

    fn failures(scenario: Scenario, fault: fn(&mut Observations)) -> Vec<&'static str> {
        let args = ScenarioArgs {
            scenario,
            agents: 5,
            interval: None,
            brief: false,
        };
        let mut observed = good_run(scenario);
        fault(&mut observed);
        let checks = checks(&args, &observed);
        let failed = checks.iter().filter(|check| !check.held);
        failed.map(|check| check.name).collect()
    }

    #[test]
    fn each_fault_fails_exactly_one_expectation() {
        use Scenario::{Restart, Steady, Storm};
        for scenario in Scenario::value_variants() {
            assert_eq!(failures(*scenario, |_| {}), [""; 0], "{scenario:?}");
        }
        type Fault = fn(&mut Observations);
        let faults: [(Scenario, &str, Fault); 12] = [
            (Steady, "all connected", |run| run.connected = SLOW),
            (Steady, "went offline", |run| run.offline = 1),
            (Restart, "went offline", |run| run.offline = 1),
            (Steady, "every stream kept", |run| {
                run.totals.counts.streams = 6;
            }),
            (Steady, "samples rejected", |run| {
                run.totals.counts.rejected = 1;
            }),
            (Steady, "no errors", |run| {
                run.totals.errors.insert("x".into(), 1);
            }),
            (Steady, "acknowledgement p99", |run| {
                run.totals.window.ack.record_duration(SLOW);
            }),
            (Restart, "all serve again", |run| run.restarts[0].up = SLOW),
            (Restart, "all back and acknowledged", |run| {
                run.restarts[0].back = SLOW;
            }),
            (Storm, "all back and acknowledged", |run| {
                run.after_storm = Some(SLOW);
            }),
            (Storm, "the books balance", |run| run.books.open = 1),
            (Storm, "the books balance", |run| run.books.tables = None),
        ];
        for (scenario, name, fault) in faults {
            assert_eq!(failures(scenario, fault), [name]);
        }
    }
}
