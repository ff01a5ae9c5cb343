//! One flag for each setting, generated from the table of settings.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::config::{Flags, SETTINGS, Setting};

const CONFIG: &str = "config";

#[derive(Debug, Default)]
pub(super) struct FlagArgs(pub Flags);

impl Args for FlagArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(std::path::PathBuf))
            .help("The configuration file [default: /etc/svc/agent.toml]");
        let flags = SETTINGS.iter().map(flag);
        let all = std::iter::once(config).chain(flags);
        command.args(all.map(|arg| arg.global(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
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

impl FromArgMatches for FlagArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let value = |setting: &'static Setting| {
            let text = matches.get_one::<String>(setting.name)?;
            Some((setting.name, text.clone()))
        };
        Ok(Self(Flags {
            file: matches.get_one(CONFIG).cloned(),
            values: SETTINGS.iter().filter_map(value).collect(),
        }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
