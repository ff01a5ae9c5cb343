//! The web console's part of an installation: a role of its own, and its settings.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use url::{Host, Url};

use super::{
    args::Args,
    authority::Pair,
    certificates::{self, Wanted},
    connection_string::{login_of, new_password, service_url},
    files::{self, Owner},
    peer::{Login, Request},
    settings::{self, Settings},
    step::Step,
};
use crate::cli::Usage;

const URL: &str = "DATABASE_URL";
const BASE_URL: &str = "CONSOLE_BASE_URL";
const CERTIFICATE: &str = "CONSOLE_TLS_CERT";
const KEY: &str = "CONSOLE_TLS_KEY";
const PROXIES: &str = "CONSOLE_TRUSTED_PROXIES";
/// Of a proxy on the same machine.
const LOOPBACK: &str = "127.0.0.1,::1";

/// What stands between the console and its people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// A certificate of the private CA, unless it has another one.
    Certificate,
    Proxy,
    /// Clear text, to everybody who asks.
    Nothing,
    /// What the settings say; the loopback address where they say nothing.
    AsItIs,
}

#[derive(Debug)]
pub struct Plan {
    base_url: Url,
    front: Front,
    owner: Option<Owner>,
    settings: RefCell<Settings>,
}

/// What the report says about the console.
pub struct Saved {
    pub step: Step,
    pub warnings: Vec<String>,
    pub env_file: PathBuf,
    pub base_url: String,
    pub database_url: String,
    /// What browsers have to trust.
    pub ca: Option<PathBuf>,
}

impl Plan {
    /// `None` if there is no console, and none is asked for.
    pub fn new(args: &Args, env_file: &Path, service: &Settings) -> anyhow::Result<Option<Self>> {
        let file = match &args.console_folder {
            Some(folder) => folder.join("console.env"),
            None => env_file.with_file_name("console.env"),
        };
        if !args.wants_console() && !file.exists() {
            return Ok(None);
        }
        let settings = Settings::open(&file, settings::CONSOLE)?;
        let known = settings.get(BASE_URL).map(Url::parse).transpose();
        let known = known.with_context(|| format!("{BASE_URL} in {}", file.display()))?;
        if !args.wants_console() && (known.is_none() || settings.get(URL).is_none()) {
            return Ok(None); // A file of somebody else's making.
        }
        if let Some(given) = args
            .console_url
            .as_ref()
            .filter(|url| known.as_ref() != Some(*url))
        {
            settings.check_given(BASE_URL, "--console-url", base(given))?;
        }
        let front = front(args, &settings)?;
        let base_url = match (&args.console_url, &known) {
            (Some(given), _) => given.clone(),
            (None, Some(known)) => known.clone(),
            (None, None) => default_url(args, front, service)?,
        };
        if front == Front::Certificate && base_url.scheme() == "http" {
            return Err(Usage(format!(
                "{base_url}: passwords could be read on their way. Use https://, or choose --console-behind-proxy or --insecure-console"
            ))
            .into());
        }
        Ok(Some(Self {
            base_url,
            front,
            owner: Owner::of(&args.console_user),
            settings: RefCell::new(settings),
        }))
    }

    /// The certificate that the console gets, unless it has one from elsewhere.
    pub fn certificate(&self, args: &Args) -> Option<Wanted> {
        let settings = self.settings.borrow();
        let pair = self.pair(&settings);
        let known = settings.get(CERTIFICATE).map(Path::new);
        let is_ours = known.is_none_or(|known| known == pair.certificate);
        let host = self.base_url.host().map(name_of).into_iter();
        let names = host.chain(args.names.iter().cloned()).collect();
        (self.front == Front::Certificate && is_ours).then_some(Wanted {
            subject: "console TLS",
            pair,
            names,
            readers: self.owner,
        })
    }

    fn pair(&self, settings: &Settings) -> Pair {
        Pair::at(settings.folder(), "console_tls")
    }

    /// The connection string in the console's settings.
    pub fn database_url(&self) -> Option<String> {
        self.settings.borrow().get(URL).map(Into::into)
    }

    /// The role in the console's settings, or one beside the service's. `ours`: the role that the service's settings name.
    pub fn login(&self, owner: &str, ours: Option<&str>) -> anyhow::Result<Login> {
        let login = match self.settings.borrow().get(URL) {
            Some(known) => login_of(&Url::parse(known)?)?,
            None => Login {
                role: format!("{owner}_web"),
                password: new_password(),
                new: true,
                ours: false,
            },
        };
        Ok(Login {
            ours: ours == Some(&login.role),
            ..login
        })
    }

    /// Writes the connection string before the role exists.
    pub fn keep_password(&self, request: &Request) -> anyhow::Result<()> {
        let Some(web) = &request.web else {
            return Ok(());
        };
        let url = service_url(
            &request.admin_url,
            &web.role,
            &web.password,
            &request.database,
        )?;
        self.settings.borrow_mut().set(URL, &url)
    }

    /// Completes both settings: the service grants the role its rights and names the console to agents. The base URL comes last,
    /// so that a run that was cut off before it is continued in the same way.
    pub fn save(self, service: &mut Settings) -> anyhow::Result<Saved> {
        let pair = self.pair(&self.settings.borrow());
        let mut settings = self.settings.into_inner();
        let base = base(&self.base_url);
        let database_url = settings.get(URL).unwrap_or_default().to_owned();
        let role = login_of(&Url::parse(&database_url)?)?.role;
        let mut warnings = vec![
            service.set_derived("INGEST_WEB_ROLE", &role)?,
            service.set_derived("INGEST_AGENT_DOWNLOAD_BASE_URL", base)?,
        ];
        if let Some(name) = certificates::first_name(service) {
            let port = service.get("INGEST_GRPC_PORT").unwrap_or("9443");
            settings.set("CONSOLE_INGEST_ADDRESS", &format!("{name}:{port}"))?;
        }
        let mut ca = None;
        if let Some(original) = certificates::private_ca(service) {
            let copy = beside(&settings, original)?;
            settings.set("CONSOLE_INGEST_CA", &copy.to_string_lossy())?;
            ca = Some(copy);
        }
        match self.front {
            Front::Certificate => {
                if settings.get(CERTIFICATE).is_none() && pair.certificate.exists() {
                    settings.set(KEY, &pair.key.to_string_lossy())?;
                    settings.set(CERTIFICATE, &pair.certificate.to_string_lossy())?;
                }
                match settings.get(CERTIFICATE) {
                    Some(known) if Path::new(known) != pair.certificate => ca = None,
                    Some(_) => {
                        let ca = ca.as_ref().map(|ca| ca.to_string_lossy());
                        settings.set("CONSOLE_CA", &ca.unwrap_or_default())?;
                    }
                    None => warnings.push(Some(format!(
                        "the console has no certificate, because the service has one from elsewhere: set {CERTIFICATE} and {KEY} in {}",
                        settings.path().display()
                    ))),
                }
            }
            Front::Proxy => settings.set(PROXIES, LOOPBACK)?,
            Front::Nothing => settings.set("CONSOLE_BIND_ADDRESS", "0.0.0.0")?,
            Front::AsItIs => {}
        }
        if let Some(owner) = self.owner {
            warnings.push(certificates::unreadable_key(&settings, KEY, owner)?);
        }
        settings.set(BASE_URL, base)?;
        Ok(Saved {
            env_file: settings.path().into(),
            step: settings.step().about("console"),
            warnings: warnings.into_iter().flatten().collect(),
            base_url: base.into(),
            database_url,
            ca: ca.filter(|_| self.front == Front::Certificate),
        })
    }
}

/// As the settings have it.
fn base(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

/// What an option says, or else the settings. Where there is a base URL and no certificate, somebody has decided so.
fn front(args: &Args, settings: &Settings) -> anyhow::Result<Front> {
    let has_certificate = settings.get(CERTIFICATE).is_some();
    let plain = [
        (
            args.console_behind_proxy,
            "--console-behind-proxy",
            Front::Proxy,
        ),
        (args.insecure_console, "--insecure-console", Front::Nothing),
    ];
    if let Some((_, option, front)) = plain.into_iter().find(|(given, ..)| *given) {
        if has_certificate {
            bail!(
                "{} has {CERTIFICATE}, and {option} is for a console without: change the setting, or leave the option out",
                settings.path().display()
            );
        }
        return Ok(front);
    }
    let is_loopback = args.console_url.as_ref().is_some_and(is_loopback_http);
    Ok(match has_certificate || settings.get(BASE_URL).is_none() {
        true if !is_loopback => Front::Certificate,
        _ => Front::AsItIs,
    })
}

fn is_loopback_http(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && is_loopback
}

/// The host of a proxy has the port that browsers expect.
fn default_url(args: &Args, front: Front, service: &Settings) -> anyhow::Result<Url> {
    let name = args.names.first().cloned();
    let name = name.or_else(|| certificates::first_name(service));
    let name = name.context("the console needs a name: add --console-url or --name")?;
    let host = match name.contains(':') {
        true => format!("[{name}]"),
        false => name,
    };
    let url = match front {
        Front::Proxy => format!("https://{host}"),
        Front::Nothing => format!("http://{host}:3000"),
        _ => format!("https://{host}:3000"),
    };
    Url::parse(&url).with_context(|| format!("{url}: add --console-url"))
}

/// As a certificate names it.
fn name_of(host: Host<&str>) -> String {
    match host {
        Host::Domain(name) => name.into(),
        Host::Ipv4(ip) => ip.to_string(),
        Host::Ipv6(ip) => ip.to_string(),
    }
}

/// The CA's certificate in the folder of the console, which may not read the service's.
fn beside(settings: &Settings, ca: PathBuf) -> anyhow::Result<PathBuf> {
    let copy = settings.folder().join("ca.pem");
    if copy != ca {
        let text = fs::read_to_string(&ca).with_context(|| ca.display().to_string())?;
        files::replace(&copy, &text, 0o644, None)?;
    }
    Ok(copy)
}
