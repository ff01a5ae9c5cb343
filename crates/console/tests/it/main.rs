//! The console through its port: against a real PostgreSQL, the real service and its agents, as the
//! web role; and in a real browser.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod account;
mod attacks;
mod browser_attacks;
mod browser_flows;
mod browser_pages;
mod decisions;
mod documents;
mod hosts;
mod install;
mod limits;
mod live;
mod pages;
mod people;
mod process;
mod proxies;
mod scale;
mod settings;
mod support;
mod tls;
mod trust;
mod updates;
mod webdriver;
mod webhook;
