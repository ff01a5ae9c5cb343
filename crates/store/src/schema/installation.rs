//! What an installation makes before there is a schema: roles with passwords, and the database.
//!
//! A store that connects as an administrator runs these. The server gets a password as a SCRAM
//! verifier, so that no log of statements contains it.

use std::time::Duration;

use postgres_protocol::password::scram_sha_256;

use crate::{
    pg::{direct_connection::DirectConnection, tx::TxLimits, url::DatabaseUrl},
    prelude::*,
};

/// A template that is in use may have to be waited for.
const CREATING: TxLimits = TxLimits {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(30),
    idle: Duration::from_secs(60),
    deadline: Duration::from_secs(90),
};

impl Store {
    pub async fn role_exists(&self, role: &str) -> Result<bool> {
        let sql = "-- role_exists\nSELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)";
        self.flag("role_exists", sql, role).await
    }

    pub async fn database_exists(&self, database: &str) -> Result<bool> {
        let sql = "-- database_exists\nSELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
        self.flag("database_exists", sql, database).await
    }

    /// Creates a role that may log in. An administrator who is no superuser becomes its member, because only a
    /// member can create a database for it.
    pub async fn role_create(&self, role: &str, password: &str) -> Result<()> {
        let sql = "-- role_create
            SELECT format('CREATE ROLE %I LOGIN PASSWORD %L', $1, $2)
             UNION ALL
            SELECT format('GRANT %I TO CURRENT_USER', $1) FROM pg_roles WHERE rolname = current_user AND NOT rolsuper";
        let verifier = scram_sha_256(password.as_bytes());
        let params = params![role, verifier];
        let create = async |tx: Tx| tx.execute_rows(sql, &params).await;
        self.run("role_create", Auth, create).await
    }

    /// Gives a role another password.
    pub async fn role_password(&self, role: &str, password: &str) -> Result<()> {
        let sql = "-- role_password\nSELECT format('ALTER ROLE %I PASSWORD %L', $1, $2)";
        let verifier = scram_sha_256(password.as_bytes());
        let params = params![role, verifier];
        let change = async |tx: Tx| tx.execute_rows(sql, &params).await;
        self.run("role_password", Auth, change).await
    }

    /// Creates a database in UTF-8. `direct` is this store's own connection string: the statement runs outside a
    /// transaction.
    pub async fn database_create(
        &self,
        direct: &DatabaseUrl,
        database: &str,
        owner: &str,
    ) -> Result<()> {
        let sql = "-- database_create
            SELECT format('CREATE DATABASE %I OWNER %I', $1, $2)
                   || CASE pg_encoding_to_char(encoding) WHEN 'UTF8' THEN ''
                      ELSE ' TEMPLATE template0 ENCODING ''UTF8'' LC_COLLATE ''C'' LC_CTYPE ''C''' END
              FROM pg_database WHERE datname = 'template1'";
        let params = params![database, owner];
        let rows = self.read("database_create", Auth, sql, &params);
        let server = DirectConnection::connect(direct, &CREATING).await?;
        for row in rows.await? {
            server.execute(row.try_get(0)?).await?;
        }
        Ok(())
    }

    /// Lets `role` create schemas in `database`, as the console does for its own.
    pub async fn database_grant_create(&self, database: &str, role: &str) -> Result<()> {
        let sql = "-- database_grant_create
            SELECT format('GRANT CREATE ON DATABASE %I TO %I', $1, $2)
             WHERE NOT has_database_privilege($2::name, $1::text, 'CREATE')";
        let params = params![database, role];
        let grant = async |tx: Tx| tx.execute_rows(sql, &params).await;
        self.run("database_grant_create", Auth, grant).await
    }

    async fn flag(&self, name: &'static str, sql: &str, subject: &str) -> Result<bool> {
        let params = params![subject];
        let rows = self.read(name, Auth, sql, &params).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}
