//! The vitals that a host has several of, or may not have, declared once.
//!
//! Each is a *part* of a sample: a kind, a name and a number. A new kind is a line of `part_kinds!` and changes no table,
//! because a sample stores its parts as an array of numbers, and the list of what they are (its shape) once for many
//! samples. `service/samples/scalars.rs` declares the vitals that every sample has.

/// How a part's values are combined over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A value of the moment: least, mean and greatest.
    Gauge,
    /// Counts up and starts again at 0: its increase.
    Counter,
}

macro_rules! part_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $measure:ident;)*) => {
        /// What a part measures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PartKind {
            $($(#[$doc])* $kind,)*
        }

        impl PartKind {
            pub const ALL: &[PartKind] = &[$(PartKind::$kind),*];

            /// Its name in the database and in messages. Never changed.
            pub fn name(self) -> &'static str {
                match self {
                    $(PartKind::$kind => $name,)*
                }
            }

            pub fn measure(self) -> Measure {
                match self {
                    $(PartKind::$kind => Measure::$measure,)*
                }
            }
        }
    };
}

part_kinds! {
    /// Bytes in use of the file system at this mount point. Its total is the part after it.
    DiskUsed = "disk_used", Gauge;
    /// The size of that file system. A value and no attribute, because a pool of ZFS shares its room.
    DiskTotal = "disk_total", Gauge;
    /// What users other than root can still write to a file system.
    DiskAvailable = "disk_available", Gauge;
    DiskInodesUsed = "disk_inodes_used", Gauge;
    DiskInodesFree = "disk_inodes_free", Gauge;
    /// 1 if the file system takes no writes.
    DiskReadOnly = "disk_read_only", Gauge;
    /// Bytes received by a network interface.
    InterfaceRx = "interface_rx_bytes", Counter;
    /// Bytes sent by a network interface.
    InterfaceTx = "interface_tx_bytes", Counter;
    DeviceReads = "device_reads", Counter;
    DeviceReadBytes = "device_read_bytes", Counter;
    DeviceWrites = "device_writes", Counter;
    DeviceWrittenBytes = "device_written_bytes", Counter;
    /// Milliseconds in which a block device had requests to serve.
    DeviceBusy = "device_busy_ms", Counter;
    /// Milliseconds in which some tasks waited for a processor. It has no name, like all that follow.
    PressureCpuSome = "pressure_cpu_some_ms", Counter;
    PressureMemorySome = "pressure_memory_some_ms", Counter;
    PressureMemoryFull = "pressure_memory_full_ms", Counter;
    PressureIoSome = "pressure_io_some_ms", Counter;
    PressureIoFull = "pressure_io_full_ms", Counter;
    /// Milliseconds that the hypervisor took from all processors together.
    CpuSteal = "cpu_steal_ms", Counter;
}
