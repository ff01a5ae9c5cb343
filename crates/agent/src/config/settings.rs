//! The table of settings: their names, defaults and meanings. The variable and the flag of a
//! setting follow from its name. A test compares the table in docs/agent.md with this one.

/// One setting. Its name is its key in the file.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub default: Option<&'static str>,
    /// The value of a secret is never shown.
    pub secret: bool,
    pub meaning: &'static str,
}

impl Setting {
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// `data_dir` is `SVC_AGENT_DATA_DIR` in the environment.
    pub fn variable(&self) -> String {
        format!("SVC_AGENT_{}", self.name.to_uppercase())
    }

    /// `data_dir` is `--data-dir` on the command line.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// The rows of the table: the name, the default, `secret` where the value is one, and the meaning.
macro_rules! settings {
    ($($name:literal, $default:expr, $($secret:ident)? $meaning:literal;)+) => {
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            default: $default,
            secret: settings!(@ $($secret)?),
            meaning: $meaning,
        }),+];
    };
    (@) => { false };
    (@ secret) => { true };
}

settings! {
    "ingest_address", None,
        "The address of the service: `host` or `host:port` (default 9443); several as a list or separated by commas";
    "ca_cert_file", Some(""),
        "The certificates to trust, PEM: the issuer of the service's certificate, or that certificate itself. Empty: the system's roots";
    "trust_updates", Some("on"),
        "Whether trust anchors that the service announces are taken, beside `ca_cert_file`: `on` or `off`";
    "enrolment_token", Some(""), secret
        "The token that admits this machine; needed until it is enrolled (a flag is visible in the process list)";
    "enrolment_token_file", Some(""), "A file that contains the token, as an alternative";
    "data_dir", Some("/var/lib/svc-agent"), "The folder for the agent's key, state and samples";
    "client_cert_file", Some(""),
        "A client certificate of your own PKI, PEM, if the service requires one (INGEST_TLS_CLIENT_CA)";
    "client_key_file", Some(""), "The private key of `client_cert_file`, PEM";
    "https_proxy", Some(""), secret
        "The HTTP proxy to the service: `http://host:port` or `http://user:password@host:port`; `direct`: none. Empty: the variable `https_proxy`";
    "no_proxy", Some(""),
        "The hosts that are reached without the proxy: names with all names below them, IP addresses, networks, `*`. Empty: the variable `no_proxy`";
    "spool_size", Some("64MiB"), "The most disk space for samples that are not acknowledged yet";
    "spool_age", Some("7d"), "The age at which samples that are not acknowledged are given up";
    "log", Some("info"),
        "The least severe level that is logged: `error`, `warn`, `info`, `debug` or `trace`";
    "log_format", Some("text"), "The format of log lines: `text` or `json`";
    "key_age", Some("90d"),
        "The age at which the agent changes its key by itself, give or take a tenth, or `off`";
    "update", Some("auto"),
        "Whether the agent updates itself: `on`, `off`, or `auto`, which is on, but not in a container";
    "update_keys", Some("/etc/svc-agent/update-keys"),
        "A folder of root's with your own keys for releases, `*.pem`, besides the keys of the build";
    "update_trial", Some("10m"), "How long a new version must work until it is approved";
    "pinned", Some(""),
        "The settings of the service that this machine does not take: `interval`, `left_out`, `ignored_mounts`, `ignored_file_systems`, `ignored_interfaces`, `log`, `spool_bytes`, `update`; as a list or separated by commas";
    "pinned_cell", Some("false"), "`true`: the agent never moves to another cell, whatever the service says";
}
