//! A digest of the sessions of an instance, so that an instance can compare what it holds with what is stored
//! without reading it.
//!
//! Every instance compares every few seconds, and nearly always finds no difference. With 200,000 sessions, 40,000
//! rows a second would be read for that. The digest is the XOR of a 64-bit hash of each agent and epoch; two
//! different sets have the same digest with a probability of 2^-64, because the ids are random.
//!
//! The hash is PostgreSQL's own for UUIDs, with the epoch as its seed, computed here as well. PostgreSQL keeps it
//! stable, because it decides which hash partition a row belongs to. A server with another byte order computes
//! another hash. Then the digests differ, and the caller reads the sessions.

use crate::prelude::*;

record! {
    /// The sessions that are stored for an instance, without the sessions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SessionDigest {
        pub sessions: i64,
        pub digest: i64,
        /// Sessions that need a look: their agent is not active, or another machine contests its identity.
        pub doubtful: i64,
    }
}

impl SessionDigest {
    /// The digest of sessions that need no look.
    pub fn of(sessions: impl IntoIterator<Item = (AgentId, i64)>) -> Self {
        sessions
            .into_iter()
            .fold(Self::default(), |all, (agent, epoch)| Self {
                sessions: all.sessions + 1,
                digest: all.digest ^ hash(agent.0, epoch),
                ..all
            })
    }
}

impl Store {
    /// The digest of the sessions that are stored for this instance.
    pub async fn sessions_digest(&self, instance: Uuid) -> Result<SessionDigest> {
        let sql = "-- sessions_digest\nSELECT sessions, digest, doubtful FROM sessions_digest($1)";
        let params = params![instance];
        let digest = self.read_first("sessions_digest", Watch, sql, &params);
        Ok(digest.await?.unwrap_or_default())
    }
}

/// `uuid_hash_extended` of PostgreSQL: Bob Jenkins' lookup3 of the 16 bytes.
fn hash(id: Uuid, seed: i64) -> i64 {
    let word = |index: usize| {
        let bytes = id.as_bytes();
        let word = [0, 1, 2, 3].map(|offset| bytes[4 * index + offset]);
        u32::from_le_bytes(word)
    };
    let seed = seed.cast_unsigned();
    let mut state = [0x9e37_79b9_u32.wrapping_add(16 + 3_923_095); 3];
    if seed != 0 {
        state = mix(add(state, [(seed >> 32) as u32, seed as u32, 0]));
    }
    state = mix(add(state, [word(0), word(1), word(2)]));
    let [_, b, c] = finish(add(state, [word(3), 0, 0]));
    (u64::from(b) << 32 | u64::from(c)).cast_signed()
}

fn add(state: [u32; 3], words: [u32; 3]) -> [u32; 3] {
    [0, 1, 2].map(|index| state[index].wrapping_add(words[index]))
}

fn mix(mut state: [u32; 3]) -> [u32; 3] {
    for (round, bits) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
        let [x, y, z] = [round % 3, (round + 1) % 3, (round + 2) % 3];
        state[x] = state[x].wrapping_sub(state[z]) ^ state[z].rotate_left(bits);
        state[z] = state[z].wrapping_add(state[y]);
    }
    state
}

fn finish(mut state: [u32; 3]) -> [u32; 3] {
    for (round, bits) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let [x, y] = [(round + 2) % 3, (round + 1) % 3];
        state[x] = (state[x] ^ state[y]).wrapping_sub(state[y].rotate_left(bits));
    }
    state
}
