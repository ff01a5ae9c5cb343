//! `svc-agent check`: a dry run. It reads what the agent would read and connects where the
//! agent would connect, but writes nothing and opens no heartbeat stream, so a running
//! agent is not disturbed.

mod finding;
mod unit;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use rustix::fs::{Access, access};

use self::finding::Finding::{self, Bad, Doubtful, Good};
use super::output::print;
use crate::{
    anchors::Anchors,
    caller::{Caller, Facts},
    clock::Clock,
    config::{Config, Flags, Problems, Token, read_token},
    data_dir::{IDENTITY, content, holder, short},
    identity::Identity,
    state,
    wire::{Address, Names, Timeouts},
};

/// The service tolerates five minutes, but certificates have dates.
const CLOCK_BOUND: Duration = Duration::from_secs(60);

/// Exit code 1 if the agent would fail.
pub(super) async fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let config = match Config::from_env(flags) {
        Ok(config) => config,
        Err(problems) => return print_problems(&problems),
    };
    if let Err(error) = unit::continue_as_user(&config.data_dir) {
        let text =
            format!("these checks ran as root and not as the agent's user: setpriv: {error}");
        print_finding("user", &Doubtful(text))?;
    }
    let mut all_good = print_finding("configuration", &Good("complete".into()))?;
    for warning in &config.warnings {
        print_finding(&warning.name, &Doubtful(warning.message.clone()))?;
    }
    for (name, finding) in findings(&config).await {
        all_good &= print_finding(&name, &finding)?;
    }
    Ok(match all_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print_finding(name: &str, finding: &Finding) -> anyhow::Result<bool> {
    let (word, text) = match finding {
        Good(text) => ("ok  ", text),
        Doubtful(text) => ("warn", text),
        Bad(text) => ("FAIL", text),
    };
    print(&format!("{word}  {name}: {text}"))?;
    Ok(!matches!(finding, Bad(_)))
}

fn print_problems(problems: &Problems) -> anyhow::Result<ExitCode> {
    for problem in &problems.0 {
        print_finding(&problem.name, &Bad(problem.message.clone()))?;
    }
    Ok(ExitCode::from(2))
}

async fn findings(config: &Config) -> Vec<(String, Finding)> {
    let (key, identity) = key(config);
    let mut found = vec![
        ("data_dir".into(), data_dir(&config.data_dir)),
        ("key".into(), key),
        ("enrolment".into(), enrolment(config)),
        ("trust".into(), trust(config)),
    ];
    found.extend(unit::findings(config));
    let identity = identity.or_else(|| Identity::generate().ok());
    if let Some(identity) = identity {
        let route = config.route(Names::OfTheSystem);
        let (facts, clock) = (Facts::OfThisMachine, Clock::system());
        let caller = Caller::new(config, identity, facts, clock, Timeouts::default(), route);
        for address in &config.addresses {
            found.extend(service(&caller, address).await);
        }
    }
    found
}

fn data_dir(path: &Path) -> Finding {
    let shown = path.display();
    if let Some(process) = holder(path) {
        return Good(format!("{shown}, in use by process {process}"));
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => Bad(format!("{shown} is not a folder")),
        Ok(_) if access(path, Access::WRITE_OK).is_err() => Bad(format!(
            "this user cannot write to {shown}: run as the agent's user, or root"
        )),
        Ok(found) if found.mode() & 0o077 != 0 => Doubtful(format!(
            "{shown} is open to other users: the agent will make it private (0700)"
        )),
        Ok(_) => Good(shown.to_string()),
        Err(_) => match path.ancestors().skip(1).find(|parent| parent.is_dir()) {
            Some(parent) if access(parent, Access::WRITE_OK).is_ok() => {
                Good(format!("{shown} will be created"))
            }
            _ => Bad(format!(
                "{shown} does not exist, and this user cannot create it"
            )),
        },
    }
}

/// The finding, and the identity if there is one.
fn key(config: &Config) -> (Finding, Option<Identity>) {
    let path = config.data_dir.join(IDENTITY);
    let read = match &config.client_pair {
        Some(pair) => Identity::from_files(pair).map_err(|error| error.to_string()),
        None => match content(&path) {
            Ok(Some(text)) => Identity::from_pem(&text, &path.display().to_string())
                .map_err(|error| error.to_string()),
            Ok(None) => return (Good("will be created".into()), None),
            Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
        },
    };
    match read {
        Err(message) => (Bad(message), None),
        Ok(identity) => {
            let fingerprint = identity.fingerprint();
            let shown = format!("{} ({fingerprint})", short(&fingerprint));
            (Good(shown), Some(identity))
        }
    }
}

fn enrolment(config: &Config) -> Finding {
    if state::read(&config.data_dir).is_ok_and(|state| state.agent_id.is_some()) {
        return Good("the service knows this agent: `svc-agent status` shows its enrolment".into());
    }
    match &config.token {
        Token::Given(_) | Token::Setting(_) => Good("a token is set".into()),
        Token::None => Doubtful(
            "no token is set, and this agent is not enrolled: `svc-ingest token create` creates one"
                .into(),
        ),
        Token::File(path) => match read_token(path) {
            Ok(text) if text.is_empty() => Bad(format!("{} is empty", path.display())),
            Ok(_) => Good(format!("a token is in {}", path.display())),
            Err(error) => Bad(format!("{} cannot be read: {error}", path.display())),
        },
    }
}

fn trust(config: &Config) -> Finding {
    match Anchors::open(config).trust() {
        Err(error) => Bad(error.to_string()),
        Ok(_) => match &config.ca_cert_file {
            Some(path) => Good(format!("the certificates in {}", path.display())),
            None => Good("the system's roots".into()),
        },
    }
}

/// Checks the name, TCP, TLS in both directions, HTTP/2 and gRPC, and compares the clocks.
async fn service(caller: &Caller, address: &Address) -> Vec<(String, Finding)> {
    let name = match caller.proxy_for(address) {
        None => address.to_string(),
        Some(proxy) => format!("{address} through the proxy {proxy}"),
    };
    match caller.probe(address).await {
        Err(error) => vec![(name, Bad(error.to_string()))],
        Ok(time) => vec![
            (
                name,
                Good("it answers, is trusted, and accepts this agent's certificate".into()),
            ),
            ("clock".into(), clock(time, SystemTime::now())),
        ],
    }
}

fn clock(service: Option<SystemTime>, own: SystemTime) -> Finding {
    let Some(service) = service else {
        return Doubtful("the service does not send its time".into());
    };
    let apart = own
        .duration_since(service)
        .unwrap_or_else(|error| error.duration());
    match apart > CLOCK_BOUND {
        true => Doubtful(format!(
            "this machine's clock differs from the service's by {} s: the agent corrects sample times, but certificates may seem expired",
            apart.as_secs()
        )),
        false => Good("within a minute of the service's".into()),
    }
}
