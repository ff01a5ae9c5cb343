//! One look at the machine: how busy, how full, how long up.
