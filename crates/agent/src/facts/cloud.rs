//! The machine's id in its cloud, as `provider/id`, read from files only.
//!
//! It is the strongest identifier, so it must not be a guess. The sources, in this order:
//! - the firmware of an AWS instance (`board_asset_tag`);
//! - cloud-init's file of this boot, /run/cloud-init/instance-data.json;
//! - cloud-init's file of an earlier boot, /var/lib/cloud/data/instance-id, if the firmware
//!   names a cloud's hypervisor.
//!
//! Providers without instance ids (`nocloud`, config drives) are ignored: their ids are the
//! same on every machine of an image.

use serde_json::Value;

use super::dmi;
use crate::machine::Machine;

/// Clouds with unique instance ids: cloud-init's name and ours.
const CLOUDS: [(&str, &str); 14] = [
    ("aws", "aws"),
    ("ec2", "aws"),
    ("gce", "gcp"),
    ("gcp", "gcp"),
    ("azure", "azure"),
    ("openstack", "openstack"),
    ("oracle", "oracle"),
    ("digitalocean", "digitalocean"),
    ("hetzner", "hetzner"),
    ("vultr", "vultr"),
    ("scaleway", "scaleway"),
    ("aliyun", "alibaba"),
    ("akamai", "akamai"),
    ("upcloud", "upcloud"),
];
/// The firmware's vendor on such a cloud, and our name of it.
const VENDORS: [(&str, &str); 8] = [
    ("Amazon EC2", "aws"),
    ("Google", "gcp"),
    ("DigitalOcean", "digitalocean"),
    ("Hetzner", "hetzner"),
    ("OpenStack Foundation", "openstack"),
    ("Vultr", "vultr"),
    ("Scaleway", "scaleway"),
    ("Alibaba Cloud", "alibaba"),
];

/// In a container the firmware is that of its node and does not count.
pub(super) fn instance_id(machine: &Machine, is_container: bool) -> Option<String> {
    let vendor = match is_container {
        true => None,
        false => find(&VENDORS, &dmi::field(machine, "sys_vendor")),
    };
    from_firmware(machine, vendor)
        .or_else(|| from_this_boot(&machine.text("/run/cloud-init/instance-data.json")))
        .or_else(|| named(vendor?, &machine.line("/var/lib/cloud/data/instance-id")))
}

fn from_firmware(machine: &Machine, vendor: Option<&str>) -> Option<String> {
    let tag = dmi::field(machine, "board_asset_tag");
    (vendor == Some("aws") && tag.starts_with("i-")).then(|| format!("aws/{tag}"))
}

fn from_this_boot(text: &str) -> Option<String> {
    let data: Value = serde_json::from_str(text).ok()?;
    let field = |name: &str| data["v1"][name].as_str();
    named(find(&CLOUDS, field("cloud_name")?)?, field("instance_id")?)
}

fn named(provider: &str, id: &str) -> Option<String> {
    let is_id = !id.is_empty() && !id.contains('/') && !id.starts_with("iid-");
    is_id.then(|| format!("{provider}/{id}"))
}

fn find(names: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let (_, ours) = names
        .iter()
        .find(|(theirs, _)| theirs.eq_ignore_ascii_case(name))?;
    Some(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
    const DATA: &str = "/run/cloud-init/instance-data.json";
    const OLD: &str = "/var/lib/cloud/data/instance-id";

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let (_dir, machine) = machine(files);
        instance_id(&machine, false)
    }

    #[test]
    fn the_firmware_has_priority() {
        let tag = ("/sys/class/dmi/id/board_asset_tag", "i-0abc\n");
        assert_eq!(
            found(&[(VENDOR, "Amazon EC2\n"), tag, (OLD, "i-old")]).unwrap(),
            "aws/i-0abc"
        );
        assert_eq!(found(&[(VENDOR, "Dell Inc.\n"), tag]), None);
    }

    #[test]
    fn the_file_of_this_boot_has_priority_over_an_older_one() {
        let data = r#"{"v1": {"cloud_name": "gce", "instance_id": "42"}}"#;
        assert_eq!(found(&[(DATA, data), (OLD, "41")]).unwrap(), "gcp/42");
        assert_eq!(
            found(&[(VENDOR, "Hetzner"), (OLD, "77\n")]).unwrap(),
            "hetzner/77"
        );
    }

    #[test]
    fn ids_that_machines_of_an_image_share_are_ignored() {
        for data in [
            r#"{"v1": {"cloud_name": "nocloud", "instance_id": "iid-local01"}}"#,
            r#"{"v1": {"cloud_name": "openstack", "instance_id": "iid-datasource-none"}}"#,
            r#"{"v1": {"cloud_name": "aws"}}"#,
            r#"{"v1": 7}"#,
            "[",
            "",
        ] {
            assert_eq!(found(&[(DATA, data), (OLD, "x")]), None, "{data}");
        }
    }
}
