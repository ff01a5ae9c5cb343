//! One connection through the proxy: two pumps, one each way.
//!
//! A pump reads, then asks the knobs, then writes. So a byte that is on its way when a knob turns
//! obeys it, and while the way is lost a pump holds at most one piece; the rest waits in the
//! kernel, as it would in the sender's on a real network.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Direction, Knobs};

const PIECE: usize = 64 * 1024;

/// Why a connection ended other than by both sides' wish.
struct Cut;

impl<E: std::error::Error> From<E> for Cut {
    fn from(_: E) -> Cut {
        Cut
    }
}

/// Relays until both sides are done or something cuts it; the client of a cut connection sees a
/// reset.
pub(super) async fn serve(mut client: TcpStream, turn: usize, knobs: watch::Receiver<Knobs>) {
    let cuts = knobs.borrow().cuts;
    let mut watched = knobs.clone();
    let outcome = tokio::select! {
        biased;
        _ = watched.wait_for(|knobs| knobs.cuts != cuts) => Err(Cut),
        outcome = relay(&mut client, turn, knobs) => outcome,
    };
    if outcome.is_err() {
        let _ = client.set_zero_linger();
    }
}

async fn relay(
    client: &mut TcpStream,
    turn: usize,
    mut knobs: watch::Receiver<Knobs>,
) -> Result<(), Cut> {
    let limit = knobs.borrow().cut_after;
    let limit_of = |way| {
        limit
            .filter(|(limited, _)| *limited == way)
            .map(|(_, bytes)| bytes)
    };
    way_found(&mut knobs).await?;
    let targets = knobs.borrow().targets.clone();
    let mut target = connect(&targets, turn).await?;
    let _ = (client.set_nodelay(true), target.set_nodelay(true));

    let (from_client, to_client) = client.split();
    let (from_target, to_target) = target.split();
    let up = pump(
        from_client,
        to_target,
        knobs.clone(),
        (Direction::ToServer, limit_of(Direction::ToServer)),
    );
    let down = pump_to_client(from_target, to_client, knobs, limit_of(Direction::ToClient));
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

/// After a half close the target's bytes are read and dropped: it must not notice by a full window.
async fn pump_to_client(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut knobs: watch::Receiver<Knobs>,
    limit: Option<u64>,
) -> Result<(), Cut> {
    let half_closes = knobs.borrow().half_closes;
    let pumped = pump(
        &mut from,
        &mut to,
        knobs.clone(),
        (Direction::ToClient, limit),
    );
    tokio::select! {
        biased;
        turned = knobs.wait_for(|knobs| knobs.half_closes != half_closes) => drop(turned?),
        outcome = pumped => return outcome,
    }
    to.shutdown().await?;
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(())
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut knobs: watch::Receiver<Knobs>,
    (way, limit): (Direction, Option<u64>),
) -> Result<(), Cut> {
    let mut left = limit.unwrap_or(u64::MAX);
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let length = from.read(&mut piece[..most]).await?;
        delayed(&mut knobs).await?;
        if length == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(&piece[..length]).await?;
        if way == Direction::ToServer && are_last_words(&knobs, &piece[..length]) {
            return Err(Cut);
        }
        left -= length as u64;
    }
    Err(Cut)
}

async fn delayed(knobs: &mut watch::Receiver<Knobs>) -> Result<(), Cut> {
    let delay = knobs.borrow().delay;
    if !delay.is_zero() {
        sleep(delay).await;
    }
    way_found(knobs).await
}

async fn way_found(knobs: &mut watch::Receiver<Knobs>) -> Result<(), Cut> {
    knobs.wait_for(|knobs| !knobs.black_hole).await?;
    Ok(())
}

fn are_last_words(knobs: &watch::Receiver<Knobs>, said: &[u8]) -> bool {
    let last_words = knobs.borrow().last_words.clone();
    last_words.is_some_and(|last_words| last_words.are(said))
}
