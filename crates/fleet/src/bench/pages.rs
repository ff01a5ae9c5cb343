//! Pages of history: how long a reader waits for one host's samples of an hour, a day, a week, a month.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls, types::Type};
use uuid::Uuid;

use crate::{
    figures::{Goal, Table},
    lab::Lab,
};

/// Each query runs this often for each host; the median counts.
const REPEATS: usize = 3;
const PAGES: [(&str, i64); 4] = [("1 h", 1), ("24 h", 24), ("7 d", 7 * 24), ("30 d", 30 * 24)];

/// The samples of a host between two times: by the function, and by the view.
const FUNCTION: &str = "host_samples($1, $2, $3)";
const VIEW: &str = "host_metrics WHERE host_id = $1 AND sampled_at BETWEEN $2 AND $3";
/// The same as arrays, as the console reads them.
const ARRAYS: &str = "SELECT * FROM host_chunks($1, $2, $3) ORDER BY hour";
const ONE_ARRAY: &str = "SELECT sampled_at, cpu_percent FROM host_chunks($1, $2, $3) ORDER BY hour";
const HOURLY: &str = "SELECT * FROM host_metrics_hourly
    WHERE host_id = $1 AND hour BETWEEN $2 AND $3 ORDER BY hour";

const COLUMNS: [&str; 7] = [
    "samples",
    "all columns as arrays, ms",
    "one vital",
    "all columns as rows",
    "one vital",
    "all from the view",
    "hourly rollups",
];

/// Reads the pages that end with the hour after `hour`: milliseconds until the last row of each has arrived.
pub async fn read(
    lab: &Lab,
    hosts: &[impl ToString],
    hour: Timestamp,
) -> anyhow::Result<(Table, Vec<Goal>)> {
    let (client, connection) = tokio_postgres::connect(&lab.database_url(), NoTls).await?;
    let connection = tokio::spawn(connection);
    let hosts: Vec<Uuid> = hosts
        .iter()
        .map(|host| host.to_string().parse())
        .collect::<Result<_, _>>()?;
    let end = hour.checked_add(SignedDuration::from_hours(1))?;
    let until = end.checked_sub(SignedDuration::from_secs(1))?;
    let (mut table, mut goals) = (Table::new("page of a host's history", &COLUMNS), Vec::new());
    for (span, hours) in PAGES {
        let from = end.checked_sub(SignedDuration::from_hours(hours))?;
        let read = async |sql: &str| timed(&client, sql, &hosts, from, until).await;
        let rows = async |columns: &str, source: &str| {
            read(&format!(
                "SELECT {columns} FROM {source} ORDER BY sampled_at"
            ))
            .await
        };
        let (all_rows, found) = rows("*", FUNCTION).await?;
        let expected = hours as usize * 120;
        anyhow::ensure!(found == expected, "{found} of {expected} samples were read");
        let one_of_rows = rows("sampled_at, cpu_percent", FUNCTION).await?.0;
        let view = rows("*", VIEW).await?.0;
        let (all, one) = (read(ARRAYS).await?.0, read(ONE_ARRAY).await?.0);
        let hourly = read(HOURLY).await?.0;
        let figures = [found as f64, all, one, all_rows, one_of_rows, view, hourly];
        table = table.row(span, figures);
        match span {
            "24 h" => goals.push(Goal::at_most("a day of a host read back, ms", all, 10.0)),
            "30 d" => goals.push(Goal::at_most(
                "one vital of 30 days read back, ms",
                one,
                100.0,
            )),
            _ => {}
        }
    }
    drop(client);
    connection.abort();
    Ok((table, goals))
}

/// The median time, and the number of rows of one host.
async fn timed(
    client: &Client,
    sql: &str,
    hosts: &[Uuid],
    from: Timestamp,
    until: Timestamp,
) -> anyhow::Result<(f64, usize)> {
    let (mut times, mut rows) = (Vec::<Duration>::new(), 0);
    for host in (0..REPEATS).flat_map(|_| hosts) {
        let began = Instant::now();
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] = [
            (host, Type::UUID),
            (&from, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
        ];
        rows = client.query_typed(sql, &parameters).await?.len();
        times.push(began.elapsed());
    }
    times.sort();
    Ok((times[times.len() / 2].as_secs_f64() * 1e3, rows))
}
