//! Signs of life for systemd's watchdog (`WatchdogSec=`), without a library.
//!
//! They come from the loop of the agent, on its one thread: if that hangs, they end, and systemd kills the process and starts it
//! again. For a version on trial that is one try less.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

/// Runs for ever; without a watchdog it does nothing.
pub async fn run() {
    let Some((every, address)) = wanted() else {
        return std::future::pending().await;
    };
    let Ok(socket) = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    }) else {
        return std::future::pending().await;
    };
    loop {
        // A full socket takes the next one.
        drop(socket.send_to_addr(b"WATCHDOG=1", &address));
        tokio::time::sleep(every).await;
    }
}

/// Three signs in the time that systemd allows.
fn wanted() -> Option<(Duration, SocketAddr)> {
    let is_ours = |pid: String| pid == std::process::id().to_string();
    if !env::var("WATCHDOG_PID").map_or(true, is_ours) {
        return None;
    }
    let micros: u64 = env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    let path = env::var("NOTIFY_SOCKET").ok()?;
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let every = Duration::from_micros(micros) / 3;
    (!every.is_zero()).then_some((every, address.ok()?))
}
