//! One flag for each setting, generated from the table of settings.

use std::{iter::once, path::PathBuf};

use clap::{Arg, ArgMatches, value_parser};

use crate::config::{Flags, SETTINGS, Setting};

const CONFIG: &str = "config";

/// They are accepted before and after the command.
pub(super) fn args() -> impl Iterator<Item = Arg> {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("The configuration file [default: /etc/svc/agent.toml]");
    let all = once(config).chain(SETTINGS.iter().map(flag));
    all.map(|arg| arg.global(true))
}

fn flag(setting: &'static Setting) -> Arg {
    let default = setting.default.filter(|default| !default.is_empty());
    let default = default.map_or(String::new(), |default| format!(" [default: {default}]"));
    Arg::new(setting.name)
        .long(setting.flag())
        .value_name("VALUE")
        .help(format!("{}{default}", setting.meaning))
        .help_heading("Settings")
}

pub(super) fn given(matches: &ArgMatches) -> Flags {
    let value = |setting: &'static Setting| {
        let text = matches.get_one::<String>(setting.name)?;
        Some((setting.name, text.clone()))
    };
    Flags {
        file: matches.get_one(CONFIG).cloned(),
        values: SETTINGS.iter().filter_map(value).collect(),
    }
}
