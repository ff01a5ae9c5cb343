//! The table of settings: the one place where their names, defaults and meanings
//! stand. A setting's variable and flag follow from its name; the table in
//! docs/agent.md is held against this one by a test.

/// One setting, in the file under its name.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub default: Option<&'static str>,
    /// A secret's value is never shown.
    pub secret: bool,
    pub meaning: &'static str,
}

impl Setting {
    const fn new(name: &'static str, default: Option<&'static str>, meaning: &'static str) -> Self {
        Self {
            name,
            default,
            secret: false,
            meaning,
        }
    }

    const fn secret(self) -> Self {
        Self {
            secret: true,
            ..self
        }
    }

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

pub const SETTINGS: &[Setting] = &[
    Setting::new(
        "ingest_address",
        None,
        "Where the service is: `host` or `host:port` (9443), several as a list or separated by commas",
    ),
    Setting::new(
        "ca_cert_file",
        Some(""),
        "Certificates to trust the service by, PEM: its issuer's or its own. Empty: the system's roots",
    ),
    Setting::new(
        "enrolment_token",
        Some(""),
        "The token that admits this machine, until it is enrolled (as a flag it shows in the process list)",
    )
    .secret(),
    Setting::new(
        "enrolment_token_file",
        Some(""),
        "A file that holds the token, instead",
    ),
    Setting::new(
        "data_dir",
        Some("/var/lib/svc-agent"),
        "Where the agent keeps its key, its state and its samples",
    ),
    Setting::new(
        "client_cert_file",
        Some(""),
        "A certificate of your own PKI, PEM, where the service asks for one (INGEST_TLS_CLIENT_CA)",
    ),
    Setting::new("client_key_file", Some(""), "Its private key, PEM"),
    Setting::new(
        "spool_size",
        Some("64MiB"),
        "How much disk samples may take that the service does not have yet",
    ),
    Setting::new(
        "spool_age",
        Some("7d"),
        "How old such samples may become before they are given up",
    ),
    Setting::new(
        "log",
        Some("info"),
        "Which log lines are written: `error`, `warn`, `info`, `debug` or `trace`",
    ),
    Setting::new("log_format", Some("text"), "`text` or `json`"),
];
