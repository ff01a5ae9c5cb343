-- The history of the schema itself; made before the first migration.

CREATE TABLE schema_migrations (
    version    integer PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    applied_by text        NOT NULL DEFAULT session_user
);

COMMENT ON TABLE schema_migrations IS 'The migrations that made this schema; written by svc-ingest alone.';
COMMENT ON COLUMN schema_migrations.version IS 'Number of the migration, counting up from 1.';
COMMENT ON COLUMN schema_migrations.name IS 'What the migration is about.';
COMMENT ON COLUMN schema_migrations.checksum IS 'SHA-256 of the migration''s text, in hexadecimal.';
COMMENT ON COLUMN schema_migrations.applied_at IS 'When it was applied.';
COMMENT ON COLUMN schema_migrations.applied_by IS 'The database user that applied it.';
