//! One connection through the proxy: two pumps, one for each direction.
//!
//! A pump reads, then checks the settings, then writes. So a change applies to bytes that the pump
//! has already read, and in a black hole a pump holds at most one piece; the rest waits in the
//! kernel's buffers, as on a real network.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::sleep,
};

use super::Settings;

const PIECE: usize = 64 * 1024;

/// The connection ends with a reset.
struct Cut;

impl<E: std::error::Error> From<E> for Cut {
    fn from(_: E) -> Cut {
        Cut
    }
}

/// Relays until both sides are done or something cuts the connection; then the client gets a reset.
pub(super) async fn serve(mut client: TcpStream, turn: usize, settings: watch::Receiver<Settings>) {
    let cuts = settings.borrow().cuts;
    let mut watched = settings.clone();
    let outcome = tokio::select! {
        biased;
        _ = watched.wait_for(|settings| settings.cuts != cuts) => Err(Cut),
        outcome = relay(&mut client, turn, settings) => outcome,
    };
    if outcome.is_err() {
        let _ = client.set_zero_linger();
    }
}

async fn relay(
    client: &mut TcpStream,
    turn: usize,
    mut settings: watch::Receiver<Settings>,
) -> Result<(), Cut> {
    let limit = settings.borrow().cut_after.unwrap_or(u64::MAX);
    out_of_black_hole(&mut settings).await?;
    let targets = settings.borrow().targets.clone();
    let mut target = connect(&targets, turn).await?;
    let _ = (client.set_nodelay(true), target.set_nodelay(true));

    let (from_client, to_client) = client.split();
    let (from_target, to_target) = target.split();
    let triggered = |sent: &[u8]| triggers(&settings, sent);
    let up = pump(
        from_client,
        to_target,
        settings.clone(),
        u64::MAX,
        triggered,
    );
    let down = pump(from_target, to_client, settings.clone(), limit, |_| false);
    tokio::try_join!(up, down).map(drop)
}

async fn connect(targets: &[SocketAddr], turn: usize) -> Result<TcpStream, Cut> {
    for offset in 0..targets.len() {
        let target = targets[turn.wrapping_add(offset) % targets.len()];
        if let Ok(stream) = TcpStream::connect(target).await {
            return Ok(stream);
        }
    }
    Err(Cut)
}

/// Passes bytes on until the end of the stream, or until `limit` bytes have passed or `cuts` is true
/// of a piece, which has passed by then.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut settings: watch::Receiver<Settings>,
    limit: u64,
    cuts: impl Fn(&[u8]) -> bool,
) -> Result<(), Cut> {
    let mut left = limit;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let length = from.read(&mut piece[..most]).await?;
        let delay = settings.borrow().delay;
        sleep(delay).await;
        out_of_black_hole(&mut settings).await?;
        if length == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(&piece[..length]).await?;
        if cuts(&piece[..length]) {
            return Err(Cut);
        }
        left -= length as u64;
    }
    Err(Cut)
}

async fn out_of_black_hole(settings: &mut watch::Receiver<Settings>) -> Result<(), Cut> {
    settings.wait_for(|settings| !settings.black_hole).await?;
    Ok(())
}

fn triggers(settings: &watch::Receiver<Settings>, sent: &[u8]) -> bool {
    let trigger = settings.borrow().trigger.clone();
    trigger.is_some_and(|trigger| trigger.fires(sent))
}
