//! What differs for the unit's process: another user, and a sandbox.
//!
//! An administrator runs `svc-agent check` as root, who can read and write everything. So root's
//! check continues as the user that will run the agent. The sandbox cannot be entered from
//! here; its rules about files are few and known, and are compared with the settings.

use std::{
    env, fs, io,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::Command,
};

use rustix::process::geteuid;

use super::finding::Finding::{self, Bad};
use crate::config::{Config, Token};

const USER: &str = "svc-agent";
const UNITS: [&str; 3] = [
    "/etc/systemd/system/svc-agent.service",
    "/usr/lib/systemd/system/svc-agent.service",
    "/usr/local/lib/systemd/system/svc-agent.service",
];
/// PrivateTmp= gives the unit folders of its own.
const PRIVATE: [&str; 2] = ["/tmp", "/var/tmp"];
/// StateDirectory= makes this folder writable; ProtectSystem=strict makes all others read-only.
const WRITABLE: &str = "/var/lib/svc-agent";

/// Continues as the agent's user, if root runs this and there is such a user. Returns only if
/// that is not needed or fails.
pub(super) fn continue_as_user(data_dir: &Path) -> io::Result<()> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let owner = fs::metadata(data_dir).map(|found| found.uid()).ok();
    let ids = match owner {
        Some(uid) => find(&users, |user| user.uid == uid),
        None => find(&users, |user| user.name == USER),
    };
    match ids {
        Some(User { uid, gid, .. }) if geteuid().is_root() && uid != 0 => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={uid}"));
            command.args([&format!("--regid={gid}"), "--init-groups", "--"]);
            command
                .arg(env::current_exe()?)
                .args(env::args_os().skip(1));
            Err(command.exec())
        }
        _ => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

/// `name:password:uid:gid:…`
fn find<'a>(passwd: &'a str, is: impl Fn(&User<'a>) -> bool) -> Option<User<'a>> {
    let user = |line: &'a str| {
        let mut fields = line.split(':');
        let (name, _) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(User { name, uid, gid })
    };
    passwd.lines().filter_map(user).find(is)
}

/// Compares the settings with the sandbox, if the unit is installed.
pub(super) fn findings(config: &Config) -> Vec<(String, Finding)> {
    match UNITS.iter().any(|unit| Path::new(unit).exists()) {
        true => compared(config),
        false => Vec::new(),
    }
}

fn compared(config: &Config) -> Vec<(String, Finding)> {
    let mut files: Vec<(&str, &Path)> = Vec::new();
    files.extend(
        config
            .ca_cert_file
            .as_deref()
            .map(|file| ("ca_cert_file", file)),
    );
    if let Some(pair) = &config.client_pair {
        files.push(("client_cert_file", &pair.certificate));
        files.push(("client_key_file", &pair.key));
    }
    if let Token::File(file) = &config.token {
        files.push(("enrolment_token_file", file));
    }
    let hidden = files
        .into_iter()
        .filter(|(_, file)| is_within(file, &PRIVATE));
    let mut found: Vec<(String, Finding)> = hidden
        .map(|(name, file)| {
            let shown = file.display();
            let text = format!("the unit does not see {shown}, because its /tmp is its own");
            (name.to_owned(), Bad(text))
        })
        .collect();
    if !is_within(&config.data_dir, &[WRITABLE]) {
        let shown = config.data_dir.display();
        let text = format!(
            "the unit can write to {WRITABLE} alone: `systemctl edit svc-agent`, [Service] ReadWritePaths={shown}"
        );
        found.push(("data_dir".into(), Finding::Doubtful(text)));
    }
    found
}

fn is_within(path: &Path, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    #[test]
    fn files_that_the_sandbox_hides_are_named() {
        let variables = |name: &str| match name {
            "SVC_AGENT_INGEST_ADDRESS" => Some("a".into()),
            "SVC_AGENT_CA_CERT_FILE" => Some("/tmp/ca.pem".into()),
            "SVC_AGENT_ENROLMENT_TOKEN_FILE" => Some("/home/me/token".into()),
            "SVC_AGENT_DATA_DIR" => Some("/srv/agent".into()),
            _ => None,
        };
        let config = Config::read(&Flags::default(), &variables).unwrap();
        let found: Vec<String> = compared(&config)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(found, ["ca_cert_file", "data_dir"]);
    }

    #[test]
    fn users_are_found_by_name_and_by_id() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbad\nsvc-agent:x:991:990::/:/bin/false\n";
        let expected = User {
            name: USER,
            uid: 991,
            gid: 990,
        };
        assert_eq!(find(passwd, |user| user.name == USER), Some(expected));
        assert_eq!(find(passwd, |user| user.uid == 0).unwrap().name, "root");
        assert_eq!(find(passwd, |user| user.uid == 7), None);
    }
}
