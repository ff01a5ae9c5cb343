//! Configuration: precedence of the sources, refused values, their messages, and secrets.

use std::{collections::BTreeMap, ffi::OsString, os::unix::fs::PermissionsExt};

use anyhow::{Context, Result, ensure};
use svc_agent::config::{Config, Flags, Problems, SETTINGS, Setting, Token};
use svc_testkit::{assert_contains, write_private};
use tempfile::TempDir;

/// The three sources: a file, variables and flags.
struct Given {
    folder: TempDir,
    variables: BTreeMap<String, OsString>,
    flags: Flags,
}

fn given(file: &str) -> Result<Given> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("agent.toml");
    write_private(&path, file)?;
    let flags = Flags {
        file: Some(path),
        values: BTreeMap::new(),
    };
    Ok(Given {
        folder,
        variables: BTreeMap::new(),
        flags,
    })
}

impl Given {
    fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn flag(mut self, name: &'static str, value: &str) -> Self {
        self.flags.values.insert(name, value.into());
        self
    }

    fn read(&self) -> Result<Config, Problems> {
        Config::read(&self.flags, &|name| self.variables.get(name).cloned())
    }

    fn problems(&self) -> Result<Vec<String>> {
        let Problems(problems) = self.read().err().context("no problem was found")?;
        Ok(problems.iter().map(ToString::to_string).collect())
    }

    /// The only problem.
    fn problem(&self) -> Result<String> {
        let mut problems = self.problems()?;
        ensure!(problems.len() == 1, "{problems:?}");
        problems.pop().context("a problem")
    }
}

fn ensure_among(found: &[String], wanted: impl IntoIterator<Item = String>) -> Result<()> {
    for wanted in wanted {
        ensure!(found.contains(&wanted), "{wanted:?} is not in {found:#?}");
    }
    Ok(())
}

#[test]
fn flags_override_the_environment_and_the_environment_overrides_the_file() -> Result<()> {
    let file =
        "ingest_address = ['a.example', 'b.example:1']\ndata_dir = '/file'\nspool_size = '2MiB'";
    let config = given(file)?.read()?;
    let shown: Vec<String> = config.addresses.iter().map(ToString::to_string).collect();
    ensure!(shown == ["a.example:9443", "b.example:1"]);
    ensure!(config.data_dir == *"/file" && config.spool.bytes == 2 << 20);

    let given = given(file)?.variable("SVC_AGENT_DATA_DIR", "/variable");
    ensure!(given.read()?.data_dir == *"/variable");
    let given = given.flag("data_dir", "/flag");
    ensure!(given.read()?.data_dir == *"/flag");
    // An empty value counts as unset in every source.
    let given = given
        .flag("data_dir", "")
        .variable("SVC_AGENT_DATA_DIR", " ");
    ensure!(given.read()?.data_dir == *"/file");
    Ok(())
}

#[test]
fn drop_ins_override_the_file_in_the_order_of_their_names() -> Result<()> {
    let given = given("ingest_address = 'a.example'\ndata_dir = '/file'\nspool_size = '2MiB'")?;
    let folder = given.folder.path().join("agent.toml.d");
    std::fs::create_dir(&folder)?;
    write_private(&folder.join("20-site.toml"), "data_dir = '/second'")?;
    write_private(
        &folder.join("10-site.toml"),
        "data_dir = '/first'\nspool_size = '3MiB'",
    )?;
    write_private(&folder.join("30-site.toml.bak"), "data_dir = '/no'")?;
    let config = given.read()?;
    ensure!(config.data_dir == *"/second" && config.spool.bytes == 3 << 20);
    write_private(&folder.join("20-site.toml"), "data_dir = ")?;
    assert_contains(&given.problem()?, "20-site.toml is not TOML");
    Ok(())
}

#[test]
fn one_setting_is_enough_and_a_file_is_not_needed() -> Result<()> {
    let variables =
        |name: &str| (name == "SVC_AGENT_INGEST_ADDRESS").then(|| "ingest.example".into());
    let config = Config::read(&Flags::default(), &variables)?;
    ensure!(config.data_dir == *"/var/lib/svc-agent");
    ensure!(config.ca_cert_file.is_none() && matches!(config.token, Token::None));
    Ok(())
}

#[test]
fn all_problems_are_reported_at_once_by_name() -> Result<()> {
    let file = "ingest-address = 'a'\nlog = 7\nspool_age = '7w'\n[table]\nx = 1";
    let given = given(file)?
        .variable("SVC_AGENT_SPOOL_SIZE", "tiny")
        .flag("log_format", "xml")
        .flag("client_cert_file", "/only/one");
    let problems = given.problems()?;
    let file = given.folder.path().join("agent.toml").display().to_string();
    let wanted = [
        "ingest_address: is required: set it in /etc/svc/agent.toml, or SVC_AGENT_INGEST_ADDRESS"
            .into(),
        format!("log in {file}: \"7\" is none of error, warn, info, debug and trace"),
        format!("spool_age in {file}: \"7w\" is not a length of time: say for example 7d or 12h"),
        "SVC_AGENT_SPOOL_SIZE: \"tiny\" does not begin with a number".into(),
        "--log-format: \"xml\" is neither text nor json".into(),
        "client_key_file: is missing: a client certificate and its key go together".into(),
    ];
    ensure!(problems.len() == wanted.len(), "{problems:#?}");
    ensure_among(&problems, wanted)
}

#[test]
fn unknown_settings_and_open_secrets_are_warnings() -> Result<()> {
    let file = "ingest_address = 'a'\ningest-adress = 'b'\nspol_size = 1\ncolour = 1\nenrolment_token = 'svc_enr_x'";
    let given = given(file)?;
    let warnings = |config: Config| -> Vec<String> {
        let warnings = config.warnings.iter();
        warnings.map(ToString::to_string).collect()
    };
    let path = given.folder.path().join("agent.toml");
    let name = path.display();
    let config = given.read()?;
    ensure!(
        matches!(config.token, Token::Setting(_)),
        "{:?}",
        config.token
    );
    let found = warnings(config);
    let wanted = [
        format!("ingest-adress in {name}: is not a setting and is ignored: ingest_address is one"),
        format!("spol_size in {name}: is not a setting and is ignored: spool_size is one"),
        format!("colour in {name}: is not a setting of this version and is ignored"),
    ];
    ensure_among(&found, wanted)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
    let config = given.read()?;
    ensure!(matches!(config.token, Token::None), "{:?}", config.token);
    let found = warnings(config).join("\n");
    assert_contains(&found, "is not used, because every user can read it");
    Ok(())
}

#[test]
fn a_file_that_cannot_be_read_is_named() -> Result<()> {
    let mut missing = given("")?.flag("ingest_address", "a");
    missing.flags.file = Some("/no/such/agent.toml".into());
    assert_contains(&missing.problem()?, "/no/such/agent.toml");
    let broken =
        given("log = 'info'\nenrolment_token = svc_enr_SECRET")?.flag("ingest_address", "a");
    let problem = broken.problem()?;
    assert_contains(&problem, "is not TOML, near line");
    ensure!(!problem.contains("SECRET"), "{problem}");
    Ok(())
}

#[test]
fn the_token_is_never_shown() -> Result<()> {
    let given = given("ingest_address = 'a'\nenrolment_token = 'svc_enr_ SECRET'")?;
    let problem = given.problem()?;
    ensure!(!problem.contains("SECRET"), "{problem}");
    let given = self::given("ingest_address = 'a'\nenrolment_token = 'svc_enr_SECRET'")?;
    let shown = format!("{:?}", given.read()?);
    ensure!(!shown.contains("SECRET"), "{shown}");
    let both = given.variable("SVC_AGENT_ENROLMENT_TOKEN_FILE", "/run/token");
    assert_contains(&both.problem()?, "leave one of them out");
    Ok(())
}

#[test]
fn the_common_variables_for_proxies_yield_to_the_agents_own_settings() -> Result<()> {
    let proxy = |given: Given| -> Result<Option<String>> {
        Ok(given.read()?.proxy.as_ref().map(ToString::to_string))
    };
    let given = |file: &str| Ok::<_, anyhow::Error>(given(file)?.flag("ingest_address", "a"));
    ensure!(proxy(given("")?)?.is_none());
    let common = |given: Given| given.variable("https_proxy", "http://common:1");
    ensure!(proxy(common(given("")?))?.as_deref() == Some("common:1"));
    let capitals = given("")?.variable("HTTPS_PROXY", "http://capitals:1");
    ensure!(proxy(capitals)?.as_deref() == Some("capitals:1"));
    let own = common(given("https_proxy = 'http://own:1'")?);
    ensure!(proxy(own)?.as_deref() == Some("own:1"));
    ensure!(proxy(common(given("https_proxy = 'direct'")?))?.is_none());
    let wrong = given("https_proxy = 'https://u:SECRET@proxy'")?;
    let problem = wrong.problem()?;
    ensure!(!problem.contains("SECRET"), "{problem}");
    assert_contains(&problem, "is not an HTTP proxy");
    Ok(())
}

/// The table that docs/agent.md must contain.
fn table() -> String {
    let row = |setting: &Setting| {
        let default = match setting.default {
            None => "required".to_owned(),
            Some("") => "empty".to_owned(),
            Some(default) => format!("`{default}`"),
        };
        format!(
            "| `{}` | `{}` | `--{}` | {default} | {} |\n",
            setting.name,
            setting.variable(),
            setting.flag(),
            setting.meaning
        )
    };
    let head = "| Setting | Variable | Flag | Default | Meaning |\n|---|---|---|---|---|\n";
    let rows: String = SETTINGS.iter().map(row).collect();
    format!("<!-- settings -->\n{head}{rows}<!-- /settings -->\n")
}

#[test]
fn the_guide_has_the_table_of_settings() -> Result<()> {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent.md"))?;
    let table = table();
    ensure!(
        guide.contains(&table),
        "docs/agent.md should contain:\n{table}"
    );
    Ok(())
}
