-- What the web application needs: indexes for its lists and searches, news of registrations that
-- wait for a decision, and changes of hosts that are not decisions about an agent.
--
-- No index here contains a column that a heartbeat changes, so updates of vitals stay in their page.
-- Functions with their owner's rights name exactly the operators and functions that they mean (see 0013).

-- ---- Lists and searches --------------------------------------------------------------------------

-- In the order of the lists; it serves whatever the index on the hostname alone did.
CREATE INDEX hosts_name ON hosts (hostname, id);
DROP INDEX hosts_hostname;
CREATE INDEX hosts_labels ON hosts USING gin (labels jsonb_path_ops);
CREATE INDEX hosts_ip_addresses ON hosts USING gin (ip_addresses);
CREATE INDEX agent_state_offline ON agent_state (presence_since, agent_id) WHERE presence = 'offline';

-- Without the extension a search reads all names. A server that does not have it, or an owner who may
-- not create it, must not keep the service from starting.
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXECUTE format('CREATE INDEX hosts_hostname_trigrams ON hosts USING gin (hostname %s.gin_trgm_ops)',
                   (SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_trgm'));
EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR undefined_object THEN
    RAISE WARNING 'the search for parts of a hostname has no index: %', SQLERRM;
END $$;

-- ---- News of registrations -----------------------------------------------------------------------

-- A channel of its own: instances, which listen to svc_agents, have nothing to do for a new agent.
-- Only agents that wait are announced, because each NOTIFY takes a lock of the whole server at commit.
CREATE FUNCTION agents_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('svc_registrations'::text, NEW.id::text);
    RETURN NULL;
END $$;

CREATE TRIGGER agents_announce AFTER INSERT ON agents
    FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION agents_announce();

COMMENT ON FUNCTION agents_announce IS 'Announces a new pending agent on the channel svc_registrations.';

-- ---- Hosts: events, labels, notes, expiry --------------------------------------------------------

CREATE TABLE host_events (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    host_id  uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    agent_id uuid,
    kind     text        NOT NULL CHECK (kind IN ('note', 'labels', 'retired')),
    actor    text        NOT NULL CHECK (octet_length(actor) <= 255),
    text     text        NOT NULL CHECK (octet_length(text) <= 2000),
    db_user  text        NOT NULL DEFAULT session_user
);

CREATE INDEX host_events_host ON host_events (host_id, at);
CREATE INDEX host_events_at ON host_events (at, id);

COMMENT ON TABLE host_events IS 'What happened to a host and is no change of an agent: notes, changes of labels, retirement.';
COMMENT ON COLUMN host_events.id IS 'In order of writing, not of commit.';
COMMENT ON COLUMN host_events.at IS 'When.';
COMMENT ON COLUMN host_events.host_id IS 'The host.';
COMMENT ON COLUMN host_events.agent_id IS 'The agent that added the note; null where a person did.';
COMMENT ON COLUMN host_events.kind IS 'note, labels or retired.';
COMMENT ON COLUMN host_events.actor IS 'The person, or the agent, that did it.';
COMMENT ON COLUMN host_events.text IS 'The note, or what changed.';
COMMENT ON COLUMN host_events.db_user IS 'The database user that wrote it.';

-- At most 64 labels a host, as enrolment tokens have them. Returns how many hosts changed.
CREATE FUNCTION label_hosts(host_ids uuid[], added jsonb, removed text[], actor text)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer;
BEGIN
    IF jsonb_typeof(added) IS DISTINCT FROM 'object'
       OR EXISTS (SELECT FROM jsonb_each(added) WHERE jsonb_typeof(value) <> 'string'
                     OR octet_length(key) NOT BETWEEN 1 AND 63 OR octet_length(value #>> '{}'::text[]) > 255) THEN
        RAISE EXCEPTION 'labels are an object of texts: names of 1 to 63 bytes, values of at most 255' USING ERRCODE = 'SV400';
    END IF;
    WITH chosen AS (
        SELECT h.id, (h.labels || added) - removed AS labels FROM hosts h
         WHERE h.id = ANY (host_ids) AND (h.labels || added) - removed <> h.labels ORDER BY h.id FOR UPDATE),
    changed AS (
        UPDATE hosts h SET labels = chosen.labels FROM chosen WHERE h.id = chosen.id RETURNING h.id),
    noted AS (
        INSERT INTO host_events (host_id, kind, actor, text)
        SELECT changed.id, 'labels', left(actor, 255),
               left(pg_catalog.concat_ws(', ',
                    (SELECT pg_catalog.string_agg(key || '='::text || value, ', '::text ORDER BY key) FROM jsonb_each_text(added)),
                    (SELECT pg_catalog.string_agg('-'::text || name, ', '::text ORDER BY name) FROM pg_catalog.unnest(removed) AS name)), 1000)
          FROM changed)
    SELECT count(*) INTO touched FROM changed;
    IF EXISTS (SELECT FROM hosts h WHERE h.id = ANY (host_ids)
                  AND (SELECT count(*) FROM jsonb_object_keys(h.labels)) > 64) THEN
        RAISE EXCEPTION 'a host has at most 64 labels' USING ERRCODE = 'SV400';
    END IF;
    RETURN touched;
END $$;

COMMENT ON FUNCTION label_hosts IS 'Adds and removes labels of hosts. Returns how many hosts changed.';

CREATE FUNCTION add_host_note(host uuid, agent uuid, actor text, note text)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE added bigint;
BEGIN
    IF octet_length(note) NOT BETWEEN 1 AND 500 THEN
        RAISE EXCEPTION 'a note has 1 to 500 bytes' USING ERRCODE = 'SV400';
    END IF;
    IF NOT EXISTS (SELECT FROM hosts h WHERE h.id = host) THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    INSERT INTO host_events (host_id, agent_id, kind, actor, text)
    VALUES (host, agent, 'note', left(actor, 255), note) RETURNING id INTO added;
    RETURN added;
END $$;

COMMENT ON FUNCTION add_host_note IS 'Adds a note of 1 to 500 bytes to a host. The agent is null where a person adds it.';

-- Retires hosts whose active agent has been offline for long, the longest first. Returns how many.
CREATE FUNCTION expire_hosts(offline_for interval, actor text, most integer DEFAULT 1000)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    expired record;
    touched integer := 0;
BEGIN
    IF offline_for < interval '1 hour' THEN
        RAISE EXCEPTION 'hosts expire after an hour at least' USING ERRCODE = 'SV400';
    END IF;
    FOR expired IN
        SELECT h.id, s.presence_since FROM agent_state s
          JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
          JOIN hosts h ON h.id = a.host_id AND h.retired_at IS NULL
         WHERE s.presence = 'offline' AND s.presence_since < now() - offline_for
         ORDER BY s.presence_since LIMIT most
    LOOP
        PERFORM retire_host(expired.id, actor, 'offline since '::text || pg_catalog.date_trunc('second'::text, expired.presence_since)::text);
        INSERT INTO host_events (host_id, kind, actor, text)
        VALUES (expired.id, 'retired', left(actor, 255), 'offline since '::text || pg_catalog.date_trunc('second'::text, expired.presence_since)::text);
        touched := touched + 1;
    END LOOP;
    RETURN touched;
END $$;

COMMENT ON FUNCTION expire_hosts IS 'Retires hosts whose active agent has been offline for at least this long. Returns how many.';

REVOKE EXECUTE ON FUNCTION agents_announce, label_hosts, add_host_note, expire_hosts FROM PUBLIC;
