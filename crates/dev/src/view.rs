//! What `svc-dev` shows: its addresses, and below them the hosts with their latest vitals.
//!
//! On a terminal it is drawn again and again; into a pipe it prints the hosts only when there are new vitals.

use std::{
    future::pending,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use jiff::Timestamp;
use rustix::termios::tcgetwinsize;
use serde_json::Value;
use tokio::time::sleep;

use crate::{programs, service::Service};

const REFRESH: Duration = Duration::from_secs(2);
const CLEAR: &str = "\x1b[2J\x1b[H";
const HOST_LIST: &[&str] = &["host", "list", "--limit=50"];

/// Shows the screen until the reader closes the pipe, and then nothing more. It never returns without a failure.
pub async fn show(service: &Service, screen: &str) -> anyhow::Result<()> {
    let mut last = Vec::new();
    let mut reading = print(screen)?;
    while reading {
        sleep(REFRESH).await;
        reading = match io::stdout().is_terminal() {
            true => draw(service, screen).await?,
            false => print_new(service, &mut last).await?,
        };
    }
    pending().await
}

async fn draw(service: &Service, screen: &str) -> anyhow::Result<bool> {
    let hosts = hosts(service).await;
    let now = Timestamp::now().strftime("%H:%M:%S UTC");
    print(&format!("{CLEAR}{screen}\n  Hosts at {now}:\n\n{hosts}"))
}

/// Prints the hosts if their vitals are not the `last` ones.
async fn print_new(service: &Service, last: &mut Vec<Value>) -> anyhow::Result<bool> {
    let arguments = [HOST_LIST, &["--output=json"][..]].concat();
    // During an outage of the database there is nothing new.
    let hosts = service.run(&arguments).await.unwrap_or_default();
    let hosts: Vec<Value> = serde_json::from_str(&hosts).unwrap_or_default();
    let times = hosts.iter().map(|host| &host["vitals_at"]);
    let times: Vec<Value> = times.filter(|time| !time.is_null()).cloned().collect();
    if times.is_empty() || times == *last {
        return Ok(true);
    }
    *last = times;
    print(&self::hosts(service).await)
}

/// The list, or why there is none.
async fn hosts(service: &Service) -> String {
    let mut command = service.command(HOST_LIST);
    if let Some(columns) = terminal_width() {
        command.env("COLUMNS", columns.to_string());
    }
    let listed = programs::output(command).await;
    listed.unwrap_or_else(|error| error.to_string())
}

fn terminal_width() -> Option<u16> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(size.ws_col).filter(|columns| *columns > 0)
}

/// Returns whether the reader is still there: `head` closes the pipe.
fn print(text: &str) -> anyhow::Result<bool> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}
