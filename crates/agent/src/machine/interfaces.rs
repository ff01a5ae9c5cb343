//! Which network interfaces are the machine's own.
//!
//! Every byte that enters or leaves the machine passes an interface with a device (a network
//! card, a virtio port). Bridges, bonds, VLANs, tunnels, veths and container networks carry
//! the same bytes a second time, so only interfaces with a device count. Two kinds of these
//! are excluded: a virtual function on its host, whose card counts its bytes, and an
//! interface whose master has a device, such as a cloud's accelerated port. In a container no
//! interface has a device; then all except loopback count.

use super::Machine;

impl Machine {
    /// The names of the interfaces, sorted.
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

    /// Checks the type as well, because an interface can be renamed.
    fn is_loopback(&self, name: &str) -> bool {
        name == "lo" || self.line(&format!("/sys/class/net/{name}/type")) == "772"
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::tests::machine;

    #[test]
    fn only_interfaces_with_a_device_of_their_own_count() {
        let (_dir, machine) = machine(&[
            ("/sys/class/net/lo/type", "772"),
            ("/sys/class/net/eth1/device/vendor", ""),
            ("/sys/class/net/eth0/device/vendor", ""),
            ("/sys/class/net/eth0/master/type", ""), // a bond without a device
            ("/sys/class/net/vf0/device/physfn/vendor", ""),
            ("/sys/class/net/enP1/device/vendor", ""),
            ("/sys/class/net/enP1/master/device/vendor", ""),
            ("/sys/class/net/docker0/type", "1"),
            ("/sys/class/net/bond0/type", "1"),
        ]);
        assert_eq!(machine.interfaces(), ["eth0", "eth1"]);
    }

    #[test]
    fn without_devices_all_interfaces_except_loopback_count() {
        let (_dir, machine) = machine(&[
            ("/sys/class/net/lo/type", "772"),
            ("/sys/class/net/dummy/type", "772"),
            ("/sys/class/net/eth0/type", "1"),
        ]);
        assert_eq!(machine.interfaces(), ["eth0"]);
    }
}
