//! What only a terminal can do: ask a person, and draw again.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::Duration,
};

use svc_store::StoreError;
use tokio::{signal::ctrl_c, time::sleep};

use super::{Usage, database, output};

const REDRAW: Duration = Duration::from_secs(2);
pub const CLEAR: &str = "\x1b[2J\x1b[H";

/// Whether somebody can be asked; without, `--yes` must say so beforehand.
pub fn require_answer(yes: bool) -> Result<(), Usage> {
    if yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    let message = "this needs a confirmation, and there is no terminal to ask on: add --yes";
    Err(Usage(message.into()))
}

/// Asks on the terminal; anything but a yes is a no.
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
        eprintln!("nothing was done");
    }
    Ok(agreed)
}

/// Prints what `render` makes: once, or with `watch` again and again until Ctrl-C.
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
    while output::is_read(&format!("{clear}{screen}"))? {
        tokio::select! {
            _ = ctrl_c() => break,
            () = sleep(REDRAW) => screen = render().await.or_else(while_away)?,
        }
    }
    Ok(())
}

/// A database that is away for a while does not end a watch.
fn while_away(error: anyhow::Error) -> anyhow::Result<String> {
    match error.downcast_ref::<StoreError>() {
        Some(away) if away.is_unavailable() => Ok(database::explain(away)),
        _ => Err(error),
    }
}
