-- Searches of the web application that end early, and what instances say about how full they are.
-- No index here contains a column that a heartbeat changes, so updates of vitals stay in their page.

-- ---- Searches ------------------------------------------------------------------------------------

CREATE INDEX hosts_in_service ON hosts (hostname, id) WHERE retired_at IS NULL;
CREATE INDEX hosts_retired ON hosts (hostname, id) WHERE retired_at IS NOT NULL;
CREATE INDEX hosts_system ON hosts ((os || ' ' || os_version));
CREATE INDEX agents_version ON agents (version) WHERE status = 'active';

-- Comparing letters of the C locale is several times faster than ILIKE, which matters where a search
-- finds half of the fleet. Names are ASCII. Without the extension a search reads all names (see 0015).
DO $$
DECLARE trigrams text := (SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_trgm');
BEGIN
    IF trigrams IS NOT NULL THEN
        EXECUTE format('CREATE INDEX hosts_name_parts ON hosts USING gin (lower(hostname COLLATE "C") %s.gin_trgm_ops)', trigrams);
        DROP INDEX IF EXISTS hosts_hostname_trigrams;
    END IF;
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    RAISE WARNING 'the search for parts of a hostname has no index: %', SQLERRM;
END $$;

-- ---- How full instances are ----------------------------------------------------------------------

ALTER TABLE ingest_instances ADD COLUMN load jsonb;

COMMENT ON COLUMN ingest_instances.load IS
    'How full the instance was at its last renewal: agents, processors, memory, queue, and when its TLS certificate expires. Null for instances of earlier versions.';
