//! Labels: the Rust type, the SQL function, the tables, and every function that stores labels accept the same ones.

use anyhow::{Result, ensure};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use svc_store::{HostId, Labels, TokenId};
use uuid::Uuid;

use crate::support::{TestStore, migrated, property, sqlstate};

const ODD_KEYS: &[&str] = &[
    "", "é", "a b", "a,b", "a=b", "-a", "_", "a\u{1}", "a\n", "a\u{7f}", "'",
];
const ODD_VALUES: &[&str] = &[
    "a,b", "\u{1}", "\u{1f}", "\n", "\u{7f}", "\u{85}", "\u{9f}", "\u{a0}", "é", "'\"\\",
];

/// Around the bounds of length, and characters of all kinds but NUL, which no `jsonb` has.
fn any_label() -> impl Strategy<Value = (String, Value)> {
    let key = prop_oneof![
        6 => "[A-Za-z0-9][A-Za-z0-9._/-]{0,5}",
        2 => "[a-z0-9./_-]{61,65}",
        1 => prop::sample::select(ODD_KEYS).prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        6 => "[ -+./-~]{0,6}".prop_map(Value::String),
        2 => "(x{254,257}|é{127,128})".prop_map(Value::String),
        2 => prop::sample::select(ODD_VALUES).prop_map(|odd| json!(odd)),
        1 => prop::sample::select(vec![json!(1), json!(null), json!({}), json!(["a"])]),
    ];
    (key, value)
}

fn any_json() -> impl Strategy<Value = Value> {
    let object = |labels: Vec<(String, Value)>| Value::Object(Map::from_iter(labels));
    let many = |count: u8| {
        let labels = (0..count).map(|n| (format!("k{n}"), json!("")));
        Value::Object(Map::from_iter(labels))
    };
    prop_oneof![
        8 => prop::collection::vec(any_label(), 0..4).prop_map(object),
        1 => (63..=66_u8).prop_map(many),
        1 => prop::sample::select(vec![json!([]), json!(null), json!("a"), json!(1)]),
    ]
}

async fn check(store: &TestStore, json: &Value) -> Result<()> {
    let parsed = Labels::try_from(json);
    let sql = format!("'{}'::jsonb", json.to_string().replace('\'', "''"));
    let problem = store.sql(&format!("SELECT labels_problem({sql})")).await?;
    ensure!(
        problem.is_empty() == parsed.is_ok(),
        "{problem:?} in SQL, {parsed:?} in Rust"
    );
    for (code, statement) in [
        (
            "SV400",
            format!("SELECT add_enrolment_token(sha256('t'), 'x', 'ann', labels => {sql})"),
        ),
        (
            "SV400",
            format!(
                "INSERT INTO hosts (hostname) VALUES ('web-1');
                 SELECT label_hosts(ARRAY (SELECT id FROM hosts), {sql}, NULL, 'ann')"
            ),
        ),
        (
            "23514",
            format!("INSERT INTO enrolment_tokens (hash, labels) VALUES (sha256('t'), {sql})"),
        ),
        (
            "23514",
            format!("INSERT INTO hosts (hostname, labels) VALUES ('web-1', {sql})"),
        ),
    ] {
        let statement = format!("DELETE FROM enrolment_tokens; DELETE FROM hosts; {statement}");
        match store.sql(&statement).await {
            Ok(_) => ensure!(parsed.is_ok(), "{statement}: accepted, {parsed:?} in Rust"),
            Err(error) => {
                ensure!(parsed.is_err(), "{statement}: {error:#}");
                ensure!(sqlstate(&error)? == code, "{statement}: {error:#}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_and_all_writers_of_the_database_accept_the_same_labels() -> Result<()> {
    let store = migrated().await?;
    let check = async move |json: Value| check(&store, &json).await;
    property(96, any_json(), check).await
}

#[tokio::test]
async fn the_refusal_of_labels_names_the_problem() -> Result<()> {
    let store = migrated().await?;
    for (labels, problem) in [
        (
            json!({"a b": ""}),
            "the key of a label begins with a letter or digit",
        ),
        (
            json!({"a": "b,c"}),
            "the value of the label a is longer than 255 bytes",
        ),
        (json!({"a": 1}), "labels are an object of texts"),
    ] {
        let add =
            format!("SELECT add_enrolment_token(sha256('t'), 'x', 'ann', labels => '{labels}')");
        let error = format!("{:#}", store.sql(&add).await.unwrap_err());
        assert!(error.contains(problem), "{error}");
        let error = Labels::try_from(&labels).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    Ok(())
}

/// The bounds are those of one host, whatever adds to its labels.
#[tokio::test]
async fn a_host_keeps_its_labels_where_those_of_a_token_would_be_too_many() -> Result<()> {
    let store = migrated().await?;
    let seed = "INSERT INTO hosts (hostname, labels)
                SELECT 'web-1', jsonb_object_agg('own' || n, ''::text) FROM generate_series(1, 40) n;
                INSERT INTO enrolment_tokens (hash, label, labels)
                SELECT sha256(count::text::bytea), count, jsonb_object_agg('new' || n, ''::text)
                  FROM unnest(ARRAY[25, 24]) count, generate_series(1, count) n GROUP BY count";
    store.sql(seed).await?;
    let host: Uuid = store.sql("SELECT id FROM hosts").await?.parse()?;
    let labels = "SELECT count(*) FROM hosts, jsonb_object_keys(labels)";
    for (token, expected) in [("25", "40"), ("24", "64")] {
        let id = format!("SELECT id FROM enrolment_tokens WHERE label = '{token}'");
        let id: Uuid = store.sql(&id).await?.parse()?;
        let label =
            async |tx: svc_store::RegistrationTx| tx.host_label(HostId(host), TokenId(id)).await;
        store.registration_run("label", label).await?;
        assert_eq!(store.sql(labels).await?, expected, "{token} more");
    }
    let events = store.sql("SELECT kind, text FROM host_events").await?;
    assert_eq!(
        events,
        "labels|the token's labels were not added: there are more than 64 labels"
    );
    Ok(())
}
