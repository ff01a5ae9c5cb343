-- The console's own schema. Its role owns it, so that the console can migrate it itself.
-- An administrator may have created it, for a role that may create none.
DO $$
BEGIN
    IF to_regnamespace('console') IS NULL THEN
        CREATE SCHEMA console;
    END IF;
END $$;

CREATE TABLE console.schema_migrations (
    version    integer PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON SCHEMA console IS 'What the web console keeps for itself: people, their sessions and links.';
COMMENT ON TABLE console.schema_migrations IS 'The migrations of this schema that were applied.';
COMMENT ON COLUMN console.schema_migrations.version IS 'The number of the migration.';
COMMENT ON COLUMN console.schema_migrations.name IS 'Its name.';
COMMENT ON COLUMN console.schema_migrations.checksum IS 'SHA-256 of its text.';
COMMENT ON COLUMN console.schema_migrations.applied_at IS 'When it was applied.';
