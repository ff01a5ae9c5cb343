//! Questions to a person, and views that refresh.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::Duration,
};

use svc_store::StoreError;
use tokio::{signal::ctrl_c, time::sleep};

use super::{Usage, database, output};

const REDRAW: Duration = Duration::from_secs(2);
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Whether a person can be asked.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks for a text on the terminal. An empty answer means the default.
pub fn ask(question: &str, default: Option<&str>) -> anyhow::Result<Option<String>> {
    match default {
        Some(default) => eprint!("{question} [{default}]: "),
        None => eprint!("{question}: "),
    }
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let answer = Some(answer.trim().to_owned()).filter(|answer| !answer.is_empty());
    Ok(answer.or_else(|| default.map(Into::into)))
}

/// Fails where nobody can answer a question and `--yes` is not given.
pub fn require_answer(yes: bool) -> Result<(), Usage> {
    if yes || is_there() {
        return Ok(());
    }
    let message = "this needs a confirmation, and there is no terminal to ask on: add --yes";
    Err(Usage(message.into()))
}

/// Asks on the terminal. Any answer but yes means no.
pub fn confirm(yes: bool, question: &str) -> anyhow::Result<bool> {
    require_answer(yes)?;
    if yes {
        return Ok(true);
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let agreed = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !agreed {
        eprintln!("nothing was changed");
    }
    Ok(agreed)
}

/// Prints what `render` returns: once, or with `watch` every two seconds until Ctrl-C.
pub async fn show(
    watch: bool,
    render: impl AsyncFn() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut screen = render().await?;
    if !watch {
        return output::print(&screen);
    }
    let clear = if io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    while output::print_while_read(&format!("{clear}{screen}"))? {
        tokio::select! {
            _ = ctrl_c() => break,
            () = sleep(REDRAW) => screen = render().await.or_else(show_outage)?,
        }
    }
    Ok(())
}

/// An outage of the database does not end a watch.
fn show_outage(error: anyhow::Error) -> anyhow::Result<String> {
    match error.downcast_ref::<StoreError>() {
        Some(outage) if outage.is_unavailable() => Ok(database::explain(outage)),
        _ => Err(error),
    }
}
