//! `svc-ingest consume`: a consumer without a server. Any number of them may run.

use std::process::ExitCode;

use svc_common::signals::stop_on_signals;
use svc_ingest::{
    config::{Consume, log_settings},
    server::Worker,
};

use super::serve;

pub async fn run() -> anyhow::Result<ExitCode> {
    log_settings().start();
    let worker = Worker::bind(Consume::from_env()?).await?;
    serve::report(worker.run(stop_on_signals()?).await)
}
