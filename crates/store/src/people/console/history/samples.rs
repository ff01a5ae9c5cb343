//! A host's samples as columns: the arrays of chunks are joined and stay arrays up to the plot.

use crate::prelude::*;

/// Declares the columns that chunks and joined samples both have.
macro_rules! columns {
    ($($name:ident: $type:ty,)*) => {
        /// The samples of one host. All columns have an element for each sample.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct SampleColumns {
            pub agent_id: Vec<AgentId>,
            $(pub $name: Vec<$type>,)*
            /// In the order in which samples first name them.
            pub disks: Vec<DiskColumns>,
        }

        record! {
            /// SampleColumns as `host_chunks` returns them. All arrays have one element for each sample, except the last two.
            struct Chunk {
                agent_id: Option<AgentId>,
                $($name: Vec<$type>,)*
                mount_points: Vec<String>,
                /// Of each mount point the bytes in use in all samples, then the total bytes in all of them.
                disk_bytes: Vec<i64>,
            }
        }

        impl Chunk {
            fn fits(&self) -> bool {
                [$(self.$name.len(),)*].iter().all(|length| *length == self.seq.len())
            }
        }

        impl SampleColumns {
            fn extend(&mut self, chunk: &Chunk) {
                $(self.$name.extend(&chunk.$name);)*
            }

            fn pick(&self, order: &[usize]) -> SampleColumns {
                SampleColumns {
                    agent_id: pick(&self.agent_id, order),
                    $($name: pick(&self.$name, order),)*
                    disks: self.disks.iter().map(|disk| disk.pick(order)).collect(),
                }
            }
        }
    };
}

columns! {
    sampled_at: Timestamp,
    seq: i64,
    cpu_percent: f32,
    load_1m: f32,
    memory_used_bytes: i64,
    memory_total_bytes: i64,
    network_rx_bytes: i64,
    network_tx_bytes: i64,
}

/// A file system. A sample that does not name it has 0 bytes of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskColumns {
    pub mount_point: String,
    pub used_bytes: Vec<i64>,
    pub total_bytes: Vec<i64>,
}

impl SampleColumns {
    /// Joins chunks, and puts the samples since `from` in the order of their times.
    pub(super) fn from_rows(
        rows: &[tokio_postgres::Row],
        from: Timestamp,
    ) -> Result<SampleColumns> {
        let mut samples = SampleColumns::default();
        for row in rows {
            samples.append(Chunk::from_row(row)?);
        }
        for disk in &mut samples.disks {
            disk.resize(samples.seq.len());
        }
        Ok(samples.since(from))
    }

    /// The number of an agent that was deleted is given as the nil id. A chunk whose arrays do not fit together is
    /// left out.
    fn append(&mut self, chunk: Chunk) {
        let (before, samples) = (self.seq.len(), chunk.seq.len());
        if !chunk.fits() {
            return;
        }
        let agent_id = chunk.agent_id.unwrap_or(AgentId(uuid::Uuid::nil()));
        self.agent_id.resize(before + samples, agent_id);
        self.extend(&chunk);
        let bytes = chunk.disk_bytes.chunks_exact((2 * samples).max(1));
        for (mount_point, bytes) in chunk.mount_points.iter().zip(bytes) {
            let (used, total) = bytes.split_at(samples);
            let disk = self.disk(mount_point);
            disk.resize(before);
            disk.used_bytes.extend_from_slice(used);
            disk.total_bytes.extend_from_slice(total);
        }
    }

    fn disk(&mut self, mount_point: &str) -> &mut DiskColumns {
        let named = |disk: &DiskColumns| disk.mount_point == mount_point;
        let place = self.disks.iter().position(named).unwrap_or_else(|| {
            let mount_point = mount_point.to_owned();
            self.disks.push(DiskColumns {
                mount_point,
                ..DiskColumns::default()
            });
            self.disks.len() - 1
        });
        &mut self.disks[place]
    }

    /// Chunks are read hour by hour, so that as a rule all samples stay where they are.
    fn since(self, from: Timestamp) -> SampleColumns {
        let kept = |place: &usize| self.sampled_at[*place] >= from;
        let mut order: Vec<usize> = (0..self.seq.len()).filter(kept).collect();
        order.sort_by_key(|place| (self.sampled_at[*place], self.seq[*place]));
        if order.len() == self.seq.len() && order.is_sorted() {
            return self;
        }
        self.pick(&order)
    }
}

impl DiskColumns {
    /// Makes both columns end after so many samples.
    fn resize(&mut self, samples: usize) {
        self.used_bytes.resize(samples, 0);
        self.total_bytes.resize(samples, 0);
    }

    fn pick(&self, order: &[usize]) -> DiskColumns {
        DiskColumns {
            mount_point: self.mount_point.clone(),
            used_bytes: pick(&self.used_bytes, order),
            total_bytes: pick(&self.total_bytes, order),
        }
    }
}

fn pick<T: Copy>(column: &[T], order: &[usize]) -> Vec<T> {
    order.iter().map(|place| column[*place]).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const AGENT: AgentId = AgentId(Uuid::max());

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// SampleColumns at these seconds, which are their numbers, too. Disks have ten times as many bytes, and hundred times in all.
    fn chunk(seconds: &[i64], mount_points: &[&str]) -> Chunk {
        let zeros = vec![0; seconds.len()];
        let times = |n: i64| seconds.iter().map(move |second| n * second);
        let bytes = mount_points
            .iter()
            .flat_map(|_| times(10).chain(times(100)));
        Chunk {
            agent_id: Some(AGENT),
            sampled_at: seconds.iter().map(|second| at(*second)).collect(),
            seq: seconds.to_vec(),
            cpu_percent: seconds.iter().map(|second| *second as f32).collect(),
            load_1m: vec![0.0; seconds.len()],
            memory_used_bytes: zeros.clone(),
            memory_total_bytes: zeros.clone(),
            network_rx_bytes: zeros.clone(),
            network_tx_bytes: zeros,
            mount_points: mount_points.iter().map(|name| (*name).to_owned()).collect(),
            disk_bytes: bytes.collect(),
        }
    }

    fn joined(chunks: Vec<Chunk>, from: i64) -> SampleColumns {
        let mut samples = SampleColumns::default();
        chunks.into_iter().for_each(|chunk| samples.append(chunk));
        let count = samples.seq.len();
        samples.disks.iter_mut().for_each(|disk| disk.resize(count));
        samples.since(at(from))
    }

    #[test]
    fn chunks_are_joined_in_the_order_of_times_and_a_disk_has_0_bytes_where_it_is_not_named() {
        let chunks = vec![
            chunk(&[1, 5, 7], &["/"]),
            chunk(&[3], &[]),
            chunk(&[6, 2], &["/var", "/"]),
        ];
        let samples = joined(chunks, 2);
        assert_eq!(samples.seq, [2, 3, 5, 6, 7]);
        assert_eq!(samples.sampled_at, [2, 3, 5, 6, 7].map(at));
        assert_eq!(samples.cpu_percent, [2.0, 3.0, 5.0, 6.0, 7.0]);
        assert_eq!(samples.agent_id, [AGENT; 5]);
        let names = samples.disks.iter().map(|disk| &*disk.mount_point);
        assert_eq!(names.collect::<Vec<_>>(), ["/", "/var"]);
        assert_eq!(samples.disks[0].used_bytes, [20, 0, 50, 60, 70]);
        assert_eq!(samples.disks[0].total_bytes, [200, 0, 500, 600, 700]);
        assert_eq!(samples.disks[1].total_bytes, [200, 0, 0, 600, 0]);
    }

    #[test]
    fn what_is_damaged_is_left_out() {
        let damaged = Chunk {
            disk_bytes: vec![1, 2, 3],
            ..chunk(&[1, 2], &["/"])
        };
        let short = Chunk {
            load_1m: vec![],
            ..chunk(&[3], &["/"])
        };
        let samples = joined(vec![damaged, short, chunk(&[], &["/"])], 0);
        assert_eq!((samples.seq, samples.disks), (vec![1, 2], vec![]));
    }
}
