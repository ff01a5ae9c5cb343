//! What kind of server we are connected to, in which schema, and whose the tables are: what a start
//! checks before it changes anything.

use crate::prelude::*;

record! {
    #[derive(Debug, Clone)]
    pub struct ServerFacts {
        /// For example 150004.
        pub version_number: i32,
        /// For example "15.4".
        pub version: String,
        /// The role that we are connected as.
        pub role: String,
        /// The schema that new tables go to. `None` if no schema of the search path can be used.
        pub schema: Option<String>,
        /// Whether the role may create tables in the schema.
        pub may_create: bool,
        /// Whether every role may create objects in the schema.
        pub anyone_may_create: bool,
        /// The first schema of the search path that has our tables.
        pub home: Option<String>,
        /// The role that owns our tables.
        pub owner: Option<String>,
        /// Whether our role has the rights of the owner. True while there are no tables.
        pub owns: bool,
        /// Whether the schema has a table `schema_migrations` that is not ours.
        pub foreign_history: bool,
    }
}

impl Store {
    pub async fn server_facts(&self) -> Result<ServerFacts> {
        let sql = "-- server_facts
            WITH history AS (
                SELECT nspname, relowner,
                       EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'checksum') AS ours
                  FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                 WHERE relname = 'schema_migrations' AND relkind = 'r' AND nspname = ANY (current_schemas(false))),
            home AS (
                SELECT nspname, relowner FROM history
                 WHERE ours ORDER BY array_position(current_schemas(false), nspname) LIMIT 1)
            SELECT current_setting('server_version_num')::integer AS version_number,
                   current_setting('server_version') AS version, current_user::text AS role,
                   current_schema()::text AS schema,
                   coalesce(has_schema_privilege(current_schema()::text, 'CREATE'), false) AS may_create,
                   coalesce(has_schema_privilege('public', current_schema()::text, 'CREATE'), false) AS anyone_may_create,
                   (SELECT nspname::text FROM home) AS home,
                   (SELECT pg_get_userbyid(relowner)::text FROM home) AS owner,
                   coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM home), true) AS owns,
                   EXISTS (SELECT FROM history WHERE NOT ours AND nspname = current_schema()) AS foreign_history";
        let look = async |tx: Tx| tx.query_one(sql, &[]).await;
        ServerFacts::from_row(&self.run("server_facts", Watch, look).await?)
    }
}
