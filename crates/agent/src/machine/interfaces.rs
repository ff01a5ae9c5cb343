//! Which network interfaces are the machine's own.
//!
//! An interface with a device behind it (a card, a virtio port) carries every byte
//! that enters or leaves; bridges, bonds, VLANs, tunnels, veths and container
//! networks carry the same bytes again. So only those with a device count. Two with
//! one are left out: a virtual function on its host (its card counts it), and the
//! one that another device is the master of (a cloud's accelerated port). In a
//! container no interface has a device: then all but loopback count.

use super::Machine;

impl Machine {
    /// In the order of their names.
    pub fn interfaces(&self) -> Vec<String> {
        let (own, others): (Vec<String>, Vec<String>) = self
            .names("/sys/class/net")
            .filter(|name| !self.is_loopback(name))
            .partition(|name| self.has_device(name));
        let mut counted: Vec<String> = if own.is_empty() {
            others
        } else {
            own.into_iter().filter(|name| !self.is_part(name)).collect()
        };
        counted.sort_unstable();
        counted
    }

    fn has_device(&self, name: &str) -> bool {
        self.has(&format!("/sys/class/net/{name}/device"))
    }

    fn is_part(&self, name: &str) -> bool {
        let folder = format!("/sys/class/net/{name}");
        self.has(&format!("{folder}/device/physfn")) || self.has(&format!("{folder}/master/device"))
    }

    /// By its type in the kernel, because names can be changed.
    fn is_loopback(&self, name: &str) -> bool {
        name == "lo" || self.line(&format!("/sys/class/net/{name}/type")) == "772"
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::tests::machine;

    #[test]
    fn devices_count_and_what_is_built_on_them_does_not() {
        let (_dir, machine) = machine(&[
            ("/sys/class/net/lo/type", "772"),
            ("/sys/class/net/eth1/device/vendor", ""),
            ("/sys/class/net/eth0/device/vendor", ""),
            ("/sys/class/net/eth0/master/type", ""), // a bond, without a device
            ("/sys/class/net/vf0/device/physfn/vendor", ""),
            ("/sys/class/net/enP1/device/vendor", ""),
            ("/sys/class/net/enP1/master/device/vendor", ""),
            ("/sys/class/net/docker0/type", "1"),
            ("/sys/class/net/bond0/type", "1"),
        ]);
        assert_eq!(machine.interfaces(), ["eth0", "eth1"]);
    }

    #[test]
    fn a_container_has_what_it_was_given() {
        let (_dir, machine) = machine(&[
            ("/sys/class/net/lo/type", "772"),
            ("/sys/class/net/dummy/type", "772"),
            ("/sys/class/net/eth0/type", "1"),
        ]);
        assert_eq!(machine.interfaces(), ["eth0"]);
    }
}
