//! Who gives a command on this machine.
//!
//! The name is a claim: whoever may run a command may set its environment. The database records it beside the database user, which
//! is a fact.

use std::fs;

/// The user who called `sudo`, or the user that runs this process.
pub fn os_user() -> String {
    let set = |variable: &str| std::env::var(variable).ok().filter(|user| !user.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let known = || user_name(&fs::read_to_string("/etc/passwd").unwrap_or_default(), uid);
    let user = set("SUDO_USER").or_else(|| set("USER")).or_else(known);
    user.and_then(|user| name(&user).ok())
        .unwrap_or_else(|| format!("uid {uid}"))
}

/// Parses a name, a label or a reason: it must fit its column and a single line.
pub fn name(text: &str) -> Result<String, String> {
    if text.len() > 255 || text.chars().any(char::is_control) {
        return Err("at most 255 bytes, without control characters".into());
    }
    Ok(text.to_owned())
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_id() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nana:x:1000:100::/home/ana:/bin/sh";
        assert_eq!(user_name(passwd, 0).as_deref(), Some("root"));
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ana"));
        assert_eq!(user_name(passwd, 100), None);
    }
}
