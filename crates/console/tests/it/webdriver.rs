//! Chromium, driven by the W3C WebDriver protocol: JSON over HTTP, which needs no library.

use std::{net::SocketAddr, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use svc_sandbox::{Process, dying_with_us, free_port};
use svc_store::{LinkKind, Role};
use svc_testkit::eventually;

use crate::support::{Client, Console};

/// The name of an element's id in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys without a letter, as the protocol names them.
pub const TAB: &str = "\u{E004}";
pub const ENTER: &str = "\u{E007}";
pub const SPACE: &str = " ";

const FLAGS: [&str; 12] = [
    "--headless=new",
    // The browser ends when chromedriver does, even by SIGKILL: its pipe closes.
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
];

/// A browser of its own, with a fresh profile. It ends with this value.
pub struct Browser {
    client: Client,
    session: String,
    /// Of the console.
    origin: String,
    _driver: Process,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// The browser of a person, signed in by a one-time link as `make dev` prints it.
    pub async fn of(console: &Console, name: &str, role: Role) -> Result<Self> {
        let browser = Self::open(console.origin.clone()).await?;
        let code = console.link(name, role, LinkKind::SignIn).await?;
        browser.visit(&format!("/welcome#{code}")).await?;
        browser.shows("in service").await?;
        Ok(browser)
    }

    async fn open(origin: String) -> Result<Self> {
        let port = free_port()?;
        let mut command = dying_with_us(Path::new("chromedriver"));
        command
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let driver =
            Process::spawn(command).context("chromedriver is missing: scripts/deps installs it")?;
        let profile = tempfile::tempdir()?;
        let mut browser = Self {
            client: Client {
                address: SocketAddr::from(([127, 0, 0, 1], port)),
                origin: format!("http://127.0.0.1:{port}"),
                cookie: None,
                tls: None,
            },
            session: String::new(),
            origin,
            _driver: driver,
            _profile: profile,
        };
        eventually("chromedriver is ready", async || {
            let status = browser.client.get("/status").await;
            status.is_ok_and(|page| page.has("\"ready\":true"))
        })
        .await?;
        browser.session = browser.new_session().await?;
        browser.resize(1440, 900).await?;
        Ok(browser)
    }

    async fn new_session(&self) -> Result<String> {
        let folder = format!("--user-data-dir={}", self._profile.path().display());
        let arguments: Vec<&str> = FLAGS.into_iter().chain([folder.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = self.send("POST", "/session", &wanted).await?;
        Ok(answer["sessionId"]
            .as_str()
            .context("no session")?
            .to_owned())
    }

    /// Loads a page.
    pub async fn goto(&self, url: &str) -> Result<()> {
        self.command("url", &json!({"url": url})).await.map(drop)
    }

    /// Loads a page of the console.
    pub async fn visit(&self, path: &str) -> Result<()> {
        self.goto(&format!("{}{path}", self.origin)).await
    }

    /// Runs a script in the page, and returns what it returns.
    pub async fn run(&self, script: &str) -> Result<Value> {
        let body = json!({"script": script, "args": []});
        self.command("execute/sync", &body).await
    }

    /// Runs a script that calls its last argument with its result.
    pub async fn run_async(&self, script: &str) -> Result<Value> {
        let body = json!({"script": script, "args": []});
        self.command("execute/async", &body).await
    }

    /// Waits until an expression of JavaScript is true in the page.
    pub async fn becomes(&self, expression: &str) -> Result<()> {
        let script = format!("return Boolean({expression})");
        eventually(expression, async || {
            self.run(&script).await.is_ok_and(|value| value == true)
        })
        .await
    }

    pub async fn click(&self, css: &str) -> Result<()> {
        let body = json!({"using": "css selector", "value": css});
        let found = self.command("element", &body).await;
        let found = found.with_context(|| css.to_owned())?;
        let element = found[ELEMENT].as_str().context("no element")?;
        let path = format!("element/{element}/click");
        self.command(&path, &json!({})).await.map(drop)
    }

    /// Types into the element that has the focus, as a keyboard does.
    pub async fn keys(&self, text: &str) -> Result<()> {
        let presses = text.chars().flat_map(|key| {
            let key = key.to_string();
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        });
        let actions: Vec<Value> = presses.collect();
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.command("actions", &body).await.map(drop)
    }

    /// A property of the element that has the focus, as text.
    pub async fn focused(&self, property: &str) -> Result<String> {
        let script = format!("return String(document.activeElement?.{property} ?? '').trim()");
        let value = self.run(&script).await?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    }

    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let body = json!({"width": width, "height": height});
        self.command("window/rect", &body).await.map(drop)
    }

    /// Shows pages as a printer gets them, or on the screen again.
    pub async fn emulate(&self, medium: &str) -> Result<()> {
        let body = json!({"cmd": "Emulation.setEmulatedMedia", "params": {"media": medium}});
        self.command("goog/cdp/execute", &body).await.map(drop)
    }

    /// The page as a PDF file.
    pub async fn print(&self) -> Result<Vec<u8>> {
        let pdf = self.command("print", &json!({})).await?;
        Ok(BASE64_STANDARD.decode(pdf.as_str().context("no PDF")?)?)
    }

    /// Saves what the window shows.
    pub async fn picture(&self, file: &Path) -> Result<()> {
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.send("GET", &path, &Value::Null).await?;
        let bytes = BASE64_STANDARD.decode(picture.as_str().context("no picture")?)?;
        Ok(std::fs::write(file, bytes)?)
    }

    /// Nothing in the browser's log since the last call means an error.
    pub async fn is_quiet(&self) -> Result<()> {
        self.complains_only_of(&[]).await
    }

    /// The errors in the browser's log since the last call are these: as many lines, each of which has
    /// the text at its place.
    pub async fn complains_only_of(&self, texts: &[&str]) -> Result<()> {
        let log = self.command("se/log", &json!({"type": "browser"})).await?;
        let lines = log.as_array().into_iter().flatten();
        let severe = lines.filter(|line| line["level"] == "SEVERE");
        let lines: Vec<String> = severe.map(|line| line["message"].to_string()).collect();
        let expected = lines.len() == texts.len()
            && lines
                .iter()
                .zip(texts)
                .all(|(line, text)| line.contains(text));
        ensure!(expected, "expected {texts:?}: {lines:#?}");
        Ok(())
    }

    /// Waits until the page's main part contains `text`.
    pub async fn shows(&self, text: &str) -> Result<()> {
        let mut last = String::new();
        let waited = eventually(text, async || {
            let script = "return document.querySelector('main')?.innerText ?? ''";
            let shown = self.run(script).await.unwrap_or_default();
            last = shown.as_str().unwrap_or_default().to_owned();
            last.contains(text)
        });
        waited
            .await
            .with_context(|| format!("the page shows: {last}"))
    }

    async fn command(&self, name: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{name}", self.session);
        self.send("POST", &path, body).await
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let kind = "Content-Type: application/json\r\n";
        let page = self.client.send(method, path, kind, &body).await?;
        let answer: Value = serde_json::from_str(&page.body)?;
        ensure!(page.status == 200, "{path}: {}", answer["value"]["message"]);
        Ok(answer["value"].clone())
    }
}
