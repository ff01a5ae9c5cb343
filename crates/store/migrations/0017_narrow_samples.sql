-- Samples in narrow tables: what a sample costs PostgreSQL is what it must.
--
-- Integers stand for the ids of hosts and agents. What does not change between samples (the names of
-- disks and the like) is kept once, as a shape. New samples go into a small table for each hour of
-- *arrival*; a closed hour is compacted and dropped as a whole. The latest vitals of a host leave the wide
-- row of `hosts`. `host_metrics` is a view of all this with the columns of the table that it replaces, and
-- accepts rows: instances of the previous version write through it.

-- ---- The table of the previous version -----------------------------------------------------------

ALTER TABLE host_metrics RENAME TO host_metrics_old;
DO $$
DECLARE day record;
BEGIN
    FOR day IN SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'host_metrics_old'::regclass LOOP
        EXECUTE format('ALTER TABLE %I RENAME TO %I', day.relname, replace(day.relname, 'host_metrics_', 'host_metrics_old_'));
    END LOOP;
END $$;

COMMENT ON TABLE host_metrics_old IS 'Samples that were stored before the narrow tables; read through the view host_metrics until they are too old.';

-- ---- Numbers for ids, and the latest vitals ------------------------------------------------------

CREATE TABLE agent_numbers (
    agent_no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id uuid NOT NULL UNIQUE
);

COMMENT ON TABLE agent_numbers IS 'The integers that stand for agents in history. Rows outlive their agents, as samples do.';
COMMENT ON COLUMN agent_numbers.agent_no IS 'The number.';
COMMENT ON COLUMN agent_numbers.agent_id IS 'The agent.';

-- What rarely changes comes first and last: the WAL of an update has only the bytes between the first and the last change.
CREATE TABLE host_vitals (
    host_no                  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host_id                  uuid NOT NULL UNIQUE,
    shape                    bigint,
    memory_total_bytes       bigint,
    swap_total_bytes         bigint,
    swap_used_bytes          bigint,
    vitals_at                timestamptz,
    memory_used_bytes        bigint,
    uptime_seconds           bigint,
    network_rx_bytes         bigint,
    network_tx_bytes         bigint,
    process_count            integer,
    cpu_percent              real,
    load_1m                  real,
    load_5m                  real,
    load_15m                 real,
    fullest_disk_percent     smallint,
    parts                    bigint[],
    fullest_disk_mount_point text,
    spool_problem            text,
    unreadable_mounts        jsonb
) WITH (fillfactor = 50);

-- Whole percents change rarely, and an update that leaves an indexed value as it was stays in its page.
CREATE INDEX host_vitals_fullest_disk ON host_vitals (fullest_disk_percent DESC NULLS LAST, host_id);

COMMENT ON TABLE host_vitals IS 'The integer that stands for each host in history, and its latest sample. The only row that a heartbeat changes, besides that of agent_state.';
COMMENT ON COLUMN host_vitals.host_no IS 'The number that stands for the host in history.';
COMMENT ON COLUMN host_vitals.host_id IS 'The host.';
COMMENT ON COLUMN host_vitals.shape IS 'What the values in parts are: see sample_shapes.';
COMMENT ON COLUMN host_vitals.vitals_at IS 'When the latest sample was taken; the vitals are from it. Null before the first.';
COMMENT ON COLUMN host_vitals.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN host_vitals.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN host_vitals.swap_used_bytes IS 'Swap in use.';
COMMENT ON COLUMN host_vitals.swap_total_bytes IS 'Swap configured.';
COMMENT ON COLUMN host_vitals.uptime_seconds IS 'Time since boot.';
COMMENT ON COLUMN host_vitals.network_rx_bytes IS 'Bytes received since boot, without loopback.';
COMMENT ON COLUMN host_vitals.network_tx_bytes IS 'Bytes sent since boot, without loopback.';
COMMENT ON COLUMN host_vitals.process_count IS 'Processes.';
COMMENT ON COLUMN host_vitals.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN host_vitals.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN host_vitals.load_5m IS 'Load average over five minutes.';
COMMENT ON COLUMN host_vitals.load_15m IS 'Load average over fifteen minutes.';
COMMENT ON COLUMN host_vitals.fullest_disk_percent IS 'Use of its fullest file system, in whole percents rounded down; null where it named none.';
COMMENT ON COLUMN host_vitals.parts IS 'The values of the parts that the shape lists, in its order.';
COMMENT ON COLUMN host_vitals.fullest_disk_mount_point IS 'Which file system that is.';
COMMENT ON COLUMN host_vitals.spool_problem IS 'Why its agent cannot store samples on its own disk; null while it can.';
COMMENT ON COLUMN host_vitals.unreadable_mounts IS 'The mount points of file systems that did not say how full they are: [text]; null where there are none.';

-- Every host has a row here: lists join the two tables.
CREATE FUNCTION hosts_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO host_vitals (host_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE TRIGGER hosts_number AFTER INSERT ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_number();

COMMENT ON FUNCTION hosts_number IS 'Gives a new host its number.';

-- Without an agent's numbers and shape its samples take the general path, which sets them.
ALTER TABLE agent_state
    ADD COLUMN agent_no integer,
    ADD COLUMN host_no  integer,
    ADD COLUMN shape    bigint;

COMMENT ON COLUMN agent_state.agent_no IS 'The number that stands for the agent in history; null before its first sample.';
COMMENT ON COLUMN agent_state.host_no IS 'The number that stands for its host in history; null before its first sample on this host.';
COMMENT ON COLUMN agent_state.shape IS 'The shape of its newest samples, which is stored for this host.';

CREATE FUNCTION agents_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_state s SET host_no = NULL WHERE s.agent_id = NEW.id;
    RETURN NULL;
END $$;

CREATE TRIGGER agents_moved AFTER UPDATE OF host_id ON agents
    FOR EACH ROW WHEN (NEW.host_id <> OLD.host_id) EXECUTE FUNCTION agents_moved();

COMMENT ON FUNCTION agents_moved IS 'Forgets the number of the host that an agent has left.';

-- ---- Shapes --------------------------------------------------------------------------------------

-- The template from which format() makes the column disks of host_metrics. A disk is a part of the kind
-- disk_used, and the part after it of the kind disk_total and the same name.
CREATE FUNCTION sample_disks(parts jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '['::text || coalesce(string_agg(
               format('{"mount_point": %s, "device": %s, "fs_type": %s, "total_bytes": %%%s$s, "used_bytes": %%%s$s}',
                      replace((part -> 'name')::text, '%', '%%'), replace((part -> 'device')::text, '%', '%%'),
                      replace((part -> 'fs_type')::text, '%', '%%'), n + 1, n), ', '::text ORDER BY n), ''::text) || ']'::text
      FROM jsonb_array_elements(parts) WITH ORDINALITY AS listed(part, n)
     WHERE part ->> 'kind' = 'disk_used';
$$;

COMMENT ON FUNCTION sample_disks IS 'A template for format(): with the values of a sample''s parts it gives the JSON of its disks.';

CREATE TABLE sample_shapes (
    host_no integer NOT NULL,
    shape   bigint  NOT NULL,
    seen_on date    NOT NULL DEFAULT current_date,
    parts   jsonb   NOT NULL,
    disks   text    NOT NULL GENERATED ALWAYS AS (sample_disks(parts)) STORED,
    PRIMARY KEY (host_no, shape)
);

COMMENT ON TABLE sample_shapes IS 'What the values in the parts of a host''s samples are: one row for each list of parts that it has had.';
COMMENT ON COLUMN sample_shapes.host_no IS 'The host.';
COMMENT ON COLUMN sample_shapes.shape IS 'A hash of the list.';
COMMENT ON COLUMN sample_shapes.seen_on IS 'A day on which it was in use, about the last one: a shape that no kept sample has is removed.';
COMMENT ON COLUMN sample_shapes.parts IS 'The list: [{kind, name, …}]; counter is true where the value is a counter.';
COMMENT ON COLUMN sample_shapes.disks IS 'The disks among the parts, as a template: see sample_disks.';

-- ---- Samples of the hours that are not compacted yet ---------------------------------------------

CREATE TABLE sample_hours (
    arrived_hour    timestamptz PRIMARY KEY,
    sealed          boolean NOT NULL DEFAULT false,
    compacted_below integer NOT NULL DEFAULT 0
);

COMMENT ON TABLE sample_hours IS 'The hours of arrival that have, or had, a partition of samples_open.';
COMMENT ON COLUMN sample_hours.arrived_hour IS 'When the hour begins.';
COMMENT ON COLUMN sample_hours.sealed IS 'Whether no sample is added any more. Set under the hour''s advisory lock, which every writer shares.';
COMMENT ON COLUMN sample_hours.compacted_below IS 'The samples of hosts below this number are in sample_chunks, and are not read from samples_open any more.';

CREATE TABLE samples_open (
    arrived_hour       timestamptz NOT NULL,
    sampled_at         timestamptz NOT NULL,
    seq                bigint      NOT NULL,
    shape              bigint      NOT NULL,
    memory_used_bytes  bigint      NOT NULL,
    memory_total_bytes bigint      NOT NULL,
    swap_used_bytes    bigint      NOT NULL,
    swap_total_bytes   bigint      NOT NULL,
    uptime_seconds     bigint      NOT NULL,
    network_rx_bytes   bigint      NOT NULL,
    network_tx_bytes   bigint      NOT NULL,
    host_no            integer     NOT NULL,
    agent_no           integer     NOT NULL,
    process_count      integer     NOT NULL,
    cpu_percent        real        NOT NULL,
    load_1m            real        NOT NULL,
    load_5m            real        NOT NULL,
    load_15m           real        NOT NULL,
    parts              bigint[]    NOT NULL
) PARTITION BY RANGE (arrived_hour);

-- An hour has some hundred rows of a host, which need no order: equal keys share an entry of the index.
CREATE INDEX samples_open_host ON samples_open (host_no);

COMMENT ON TABLE samples_open IS 'New samples, one partition for each hour in which they arrived. Not for readers: see the view host_metrics.';
COMMENT ON COLUMN samples_open.arrived_hour IS 'The hour that was open when the sample was stored.';
COMMENT ON COLUMN samples_open.sampled_at IS 'When the sample was taken, as the agent says.';
COMMENT ON COLUMN samples_open.seq IS 'The agent''s number of the sample.';
COMMENT ON COLUMN samples_open.shape IS 'What the values in parts are: see sample_shapes.';
COMMENT ON COLUMN samples_open.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN samples_open.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN samples_open.swap_used_bytes IS 'Swap in use.';
COMMENT ON COLUMN samples_open.swap_total_bytes IS 'Swap configured.';
COMMENT ON COLUMN samples_open.uptime_seconds IS 'Time since boot.';
COMMENT ON COLUMN samples_open.network_rx_bytes IS 'Bytes received since boot, without loopback.';
COMMENT ON COLUMN samples_open.network_tx_bytes IS 'Bytes sent since boot, without loopback.';
COMMENT ON COLUMN samples_open.host_no IS 'The host, by its number in host_vitals.';
COMMENT ON COLUMN samples_open.agent_no IS 'The agent that took it, by its number in agent_numbers.';
COMMENT ON COLUMN samples_open.process_count IS 'Processes.';
COMMENT ON COLUMN samples_open.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN samples_open.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN samples_open.load_5m IS 'Load average over five minutes.';
COMMENT ON COLUMN samples_open.load_15m IS 'Load average over fifteen minutes.';
COMMENT ON COLUMN samples_open.parts IS 'The values of the parts that the shape lists, in its order.';

CREATE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()';

COMMENT ON FUNCTION samples_now IS 'The clock by which samples arrive and hours are closed. A function of its own, so that a test can turn it.';

-- Makes the hours that samples may arrive in next. Few of them: each costs every reader a little.
CREATE FUNCTION sample_hours_ensure() RETURNS integer LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    due  timestamptz;
    made integer := 0;
BEGIN
    FOR due IN
        SELECT hour FROM generate_series(date_trunc('hour', samples_now()), samples_now() + interval '3 hours', '1 hour') hour
         WHERE NOT EXISTS (SELECT FROM sample_hours h WHERE h.arrived_hour = hour)
    LOOP
        IF partition_ensure('samples_open', to_char(due, 'YYYYMMDDHH24'), due, due + interval '1 hour') THEN
            EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = false)', 'samples_open_' || to_char(due, 'YYYYMMDDHH24'));
            EXECUTE format('COMMENT ON TABLE %I IS %L', 'samples_open_' || to_char(due, 'YYYYMMDDHH24'), 'Samples that arrived in one hour.');
        END IF;
        INSERT INTO sample_hours (arrived_hour) VALUES (due);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

COMMENT ON FUNCTION sample_hours_ensure IS 'Makes the partitions of samples_open for this hour and the next three. Returns how many were missing.';

-- The hour that a transaction stores its samples in, and the promise that it is not sealed before the commit.
--
-- Whoever seals an hour takes its advisory lock alone, sets `sealed` and commits. A writer that gets the lock
-- before keeps the hour open until its commit; one that gets it later looks again, with a new snapshot, finds
-- the hour sealed, and takes a newer one. So after an hour was sealed no row is added to it.
--
-- It is the newest open hour that has begun, whatever the clock says: where nobody makes new hours, the last
-- one grows; where the clock steps back, a later hour is used. Nothing is refused for that.
CREATE FUNCTION sample_hour_take() RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE taken timestamptz;
BEGIN
    LOOP
        SELECT coalesce(max(h.arrived_hour) FILTER (WHERE h.arrived_hour <= samples_now()), min(h.arrived_hour)) INTO taken
          FROM sample_hours h WHERE NOT h.sealed;
        IF taken IS NULL THEN
            RAISE EXCEPTION 'there is no open hour for samples' USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        PERFORM pg_advisory_xact_lock_shared(1937137513, (extract(epoch FROM taken) / 3600)::integer);
        PERFORM FROM sample_hours h WHERE h.arrived_hour = taken AND NOT h.sealed;
        IF FOUND THEN
            RETURN taken;
        END IF;
    END LOOP;
END $$;

COMMENT ON FUNCTION sample_hour_take IS 'The hour of arrival for the samples of this transaction, which stays open until its end.';

SELECT sample_hours_ensure();

-- ---- Samples of closed hours ---------------------------------------------------------------------

CREATE TABLE sample_chunks (
    host_no            integer     NOT NULL,
    hour               timestamptz NOT NULL,
    agent_no           integer     NOT NULL,
    shape              bigint      NOT NULL,
    first_seq          bigint      NOT NULL,
    at                 integer[]   NOT NULL,
    seqs               bigint[],
    cpu_percent        real[]      NOT NULL,
    load_1m            real[]      NOT NULL,
    load_5m            real[]      NOT NULL,
    load_15m           real[]      NOT NULL,
    memory_used_bytes  bigint[]    NOT NULL,
    memory_total_bytes bigint[]    NOT NULL,
    swap_used_bytes    bigint[]    NOT NULL,
    swap_total_bytes   bigint[]    NOT NULL,
    uptime_seconds     bigint[]    NOT NULL,
    process_count      integer[]   NOT NULL,
    network_rx_bytes   bigint[]    NOT NULL,
    network_tx_bytes   bigint[]    NOT NULL,
    parts              bigint[],
    PRIMARY KEY (host_no, hour, agent_no, shape)
) PARTITION BY RANGE (hour);

COMMENT ON TABLE sample_chunks IS 'Compacted samples: one row for each hour of a host, and one array for each value; one partition for each UTC day. Not for readers: see the view host_metrics.';
COMMENT ON COLUMN sample_chunks.host_no IS 'The host, by its number in host_vitals.';
COMMENT ON COLUMN sample_chunks.hour IS 'The hour that the samples were taken in.';
COMMENT ON COLUMN sample_chunks.agent_no IS 'The agent that took them, by its number in agent_numbers.';
COMMENT ON COLUMN sample_chunks.shape IS 'What the values in parts are: see sample_shapes.';
COMMENT ON COLUMN sample_chunks.first_seq IS 'The lowest number among the samples. The arrays are in the order of the numbers.';
COMMENT ON COLUMN sample_chunks.at IS 'When they were taken: microseconds from the middle of the hour.';
COMMENT ON COLUMN sample_chunks.seqs IS 'Their numbers minus first_seq; null where they are consecutive.';
COMMENT ON COLUMN sample_chunks.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN sample_chunks.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN sample_chunks.load_5m IS 'Load average over five minutes.';
COMMENT ON COLUMN sample_chunks.load_15m IS 'Load average over fifteen minutes.';
COMMENT ON COLUMN sample_chunks.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN sample_chunks.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN sample_chunks.swap_used_bytes IS 'Swap in use.';
COMMENT ON COLUMN sample_chunks.swap_total_bytes IS 'Swap configured.';
COMMENT ON COLUMN sample_chunks.uptime_seconds IS 'Time since boot, minus the whole seconds in at: about the same number in all samples.';
COMMENT ON COLUMN sample_chunks.process_count IS 'Processes.';
COMMENT ON COLUMN sample_chunks.network_rx_bytes IS 'Bytes received since boot, without loopback.';
COMMENT ON COLUMN sample_chunks.network_tx_bytes IS 'Bytes sent since boot, without loopback.';
COMMENT ON COLUMN sample_chunks.parts IS 'The values of the parts: all of the first part, then all of the second; null where the shape lists none.';

-- Instances of the previous version call this too; samples need no partition of their day any more.
CREATE OR REPLACE FUNCTION metrics_partitions_ensure(retention interval) RETURNS integer
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    day  timestamptz;
    made integer := 0;
BEGIN
    PERFORM sample_hours_ensure();
    FOR day IN
        SELECT generate_series(date_trunc('day', now() - retention) - interval '1 day',
                               date_trunc('day', now()) + interval '2 days', '1 day')
    LOOP
        IF partition_ensure('sample_chunks', to_char(day, 'YYYYMMDD'), day, day + interval '1 day') THEN
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;

-- ---- Reading -------------------------------------------------------------------------------------

CREATE VIEW samples_visible AS
    SELECT o.* FROM samples_open o
      JOIN sample_hours h ON h.arrived_hour = o.arrived_hour AND o.host_no >= h.compacted_below;

COMMENT ON VIEW samples_visible IS 'The samples that are not compacted yet: whatever moment a reader sees, each sample is here or in sample_chunks.';

-- The hour of a chunk is a column of its own, because the planner cannot derive it from a condition on sampled_at.
-- What a query does not select is not computed, and the outer joins for it are left out.
CREATE VIEW host_metrics AS
    SELECT m.host_id, m.sampled_at, m.agent_id, m.seq, m.cpu_percent, m.load_1m, m.load_5m, m.load_15m,
           m.memory_used_bytes, m.memory_total_bytes, m.swap_used_bytes, m.swap_total_bytes,
           m.uptime_seconds, m.process_count, m.network_rx_bytes, m.network_tx_bytes, m.disks,
           date_trunc('hour', m.sampled_at, 'UTC') AS hour
      FROM host_metrics_old m
     UNION ALL
    SELECT v.host_id, o.sampled_at, n.agent_id, o.seq, o.cpu_percent::double precision, o.load_1m::double precision,
           o.load_5m::double precision, o.load_15m::double precision,
           o.memory_used_bytes, o.memory_total_bytes, o.swap_used_bytes, o.swap_total_bytes,
           o.uptime_seconds, o.process_count::bigint, o.network_rx_bytes, o.network_tx_bytes,
           coalesce(format(s.disks, VARIADIC o.parts::text[])::jsonb, '[]'), date_trunc('hour', o.sampled_at, 'UTC')
      FROM host_vitals v
      JOIN samples_visible o ON o.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = o.host_no AND s.shape = o.shape
     UNION ALL
    SELECT v.host_id, x.sampled_at, n.agent_id, c.first_seq + coalesce(x.seq, x.place - 1),
           x.cpu_percent::double precision, x.load_1m::double precision,
           x.load_5m::double precision, x.load_15m::double precision,
           x.memory_used_bytes, x.memory_total_bytes, x.swap_used_bytes, x.swap_total_bytes,
           x.uptime_seconds, x.process_count::bigint, x.network_rx_bytes, x.network_tx_bytes,
           coalesce(format(s.disks, VARIADIC p.parts[(x.place - 1) * p.kinds + 1 : x.place * p.kinds]::text[])::jsonb, '[]'), c.hour
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
     CROSS JOIN LATERAL ( -- Sample by sample instead of part by part. OFFSET keeps the planner from doing it again for each sample.
           SELECT ARRAY (SELECT w.parts[i % w.kinds * w.samples + i / w.kinds + 1]
                           FROM generate_series(0, cardinality(w.parts) - 1) i) AS parts, w.kinds
             FROM (SELECT coalesce(c.parts, '{}') || '{}'::bigint[] AS parts, cardinality(c.at) AS samples,
                          cardinality(c.parts) / cardinality(c.at) AS kinds OFFSET 0) w
           OFFSET 0) p
     CROSS JOIN LATERAL (
           SELECT generate_subscripts(c.at, 1) AS place, unnest(c.seqs) AS seq,
                  c.hour + interval '30 minutes' + unnest(c.at) * interval '1 microsecond' AS sampled_at,
                  unnest(c.cpu_percent) AS cpu_percent, unnest(c.load_1m) AS load_1m, unnest(c.load_5m) AS load_5m,
                  unnest(c.load_15m) AS load_15m, unnest(c.memory_used_bytes) AS memory_used_bytes,
                  unnest(c.memory_total_bytes) AS memory_total_bytes, unnest(c.swap_used_bytes) AS swap_used_bytes,
                  unnest(c.swap_total_bytes) AS swap_total_bytes, unnest(c.uptime_seconds) + unnest(c.at) / 1000000 AS uptime_seconds,
                  unnest(c.process_count) AS process_count, unnest(c.network_rx_bytes) AS network_rx_bytes,
                  unnest(c.network_tx_bytes) AS network_tx_bytes) x;

COMMENT ON VIEW host_metrics IS 'Every sample of every host, once. A span of one host is read fastest by host_samples.';
COMMENT ON COLUMN host_metrics.hour IS 'The UTC hour of sampled_at. With a condition on it PostgreSQL skips the other hours.';

-- One SELECT, which the planner inlines. date_bin is immutable, so it knows the partitions while it plans.
CREATE FUNCTION host_samples(host uuid, since timestamptz, until timestamptz)
    RETURNS SETOF host_metrics LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT * FROM host_metrics m
     WHERE m.host_id = host AND m.sampled_at >= since AND m.sampled_at <= until
       AND m.hour >= date_bin(interval '1 hour', since, timestamptz 'epoch') AND m.hour <= until;
END;

COMMENT ON FUNCTION host_samples IS 'The samples of one host from one time to another. Reads only the hours in between.';

DO $$
DECLARE told record;
BEGIN
    FOR told IN
        SELECT relation, attname, col_description(source::regclass, source_column.attnum) AS comment
          FROM (VALUES ('host_metrics', 'host_metrics_old'), ('samples_visible', 'samples_open')) AS views(relation, source)
          JOIN pg_attribute source_column ON source_column.attrelid = source::regclass AND attnum > 0 AND NOT attisdropped
    LOOP
        EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', told.relation, told.attname, told.comment);
    END LOOP;
    -- Whoever could read the table can read the view.
    FOR told IN
        SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role
          FROM pg_class, aclexplode(relacl) WHERE pg_class.oid = 'host_metrics_old'::regclass AND grantee <> relowner
    LOOP
        EXECUTE format('GRANT %s ON host_metrics TO %s', told.privilege_type, told.role);
    END LOOP;
END $$;

CREATE OR REPLACE VIEW host_overview AS
    SELECT h.id, h.hostname, h.os, h.os_version, h.arch, h.labels, h.created_at, h.retired_at,
           a.id AS agent_id, a.version AS agent_version,
           coalesce(s.presence = 'online', false) AS online, s.presence_since, s.cause AS presence_cause,
           CASE WHEN s.presence = 'online' THEN greatest(s.last_seen_at, least(i.renewed_at, now())) ELSE s.last_seen_at END AS last_seen_at,
           s.clock_skew_ms,
           v.vitals_at, h.cpu_count, v.cpu_percent::double precision, v.load_1m::double precision, v.memory_used_bytes,
           coalesce(v.memory_total_bytes, h.memory_total_bytes) AS memory_total_bytes,
           v.fullest_disk_percent, v.fullest_disk_mount_point,
           CASE WHEN v.shape IS NULL THEN h.disks ELSE format(d.disks, VARIADIC v.parts::text[])::jsonb END AS disks
      FROM hosts h
      LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      LEFT JOIN agent_state s ON s.agent_id = a.id
      LEFT JOIN ingest_instances i ON i.id = s.instance_id
      JOIN host_vitals v ON v.host_id = h.id
      LEFT JOIN sample_shapes d ON d.host_no = v.host_no AND d.shape = v.shape;

COMMENT ON COLUMN host_overview.disks IS 'File systems: [{mount_point, device, fs_type, total_bytes, used_bytes}].';

-- ---- Writing -------------------------------------------------------------------------------------

-- Joins in these functions look rows up by key, in the order of the arrays. The plans are made once a session,
-- perhaps while the tables are almost empty: they must not read a table as a whole when it has grown. Without
-- sequential scans the estimated cost of reading sample_hours is so high that PostgreSQL would compile it: hence no JIT.
-- A plan for each call would cost more than the call of a small batch: hence generic plans.

-- Stores samples, given as one array for each column, and updates the latest vitals where a sample is newer.
-- `owner` is the place of a sample's host and agent in `host_nos` and `agent_nos`; samples of a host that is
-- null there are left out. The arguments up to `unreadable_mounts` have an entry for each host and agent:
-- `newest` is the place of its newest sample, null where another entry of the same host has it.
CREATE FUNCTION samples_store(
    host_nos integer[], agent_nos integer[], newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[],
    spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape bigint[], parts text[],
    cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
    memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
    uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[])
    RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE hour timestamptz := sample_hour_take();
BEGIN
    INSERT INTO samples_open (
           arrived_hour, host_no, agent_no, sampled_at, seq, shape, parts, cpu_percent, load_1m, load_5m, load_15m,
           memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
           uptime_seconds, process_count, network_rx_bytes, network_tx_bytes)
    SELECT hour, host_nos[owner[i]], agent_nos[owner[i]], sampled_at[i], seq[i], shape[i], parts[i]::bigint[],
           cpu_percent[i], load_1m[i], load_5m[i], load_15m[i],
           memory_used_bytes[i], memory_total_bytes[i], swap_used_bytes[i], swap_total_bytes[i],
           uptime_seconds[i], process_count[i], network_rx_bytes[i], network_tx_bytes[i]
      FROM generate_series(1, cardinality(owner)) i
     WHERE host_nos[owner[i]] IS NOT NULL;
    UPDATE host_vitals v
       SET shape = shape[i], vitals_at = sampled_at[i], parts = parts[i]::bigint[],
           cpu_percent = cpu_percent[i], load_1m = load_1m[i], load_5m = load_5m[i], load_15m = load_15m[i],
           memory_used_bytes = memory_used_bytes[i], memory_total_bytes = memory_total_bytes[i],
           swap_used_bytes = swap_used_bytes[i], swap_total_bytes = swap_total_bytes[i],
           uptime_seconds = uptime_seconds[i], process_count = process_count[i],
           network_rx_bytes = network_rx_bytes[i], network_tx_bytes = network_tx_bytes[i],
           fullest_disk_percent = fullest_disk_percent[e], fullest_disk_mount_point = fullest_disk_mount_point[e],
           spool_problem = spool_problem[e], unreadable_mounts = unreadable_mounts[e]
      FROM unnest(host_nos, newest) WITH ORDINALITY AS entry(host_no, i, e)
     WHERE v.host_no = entry.host_no AND (v.vitals_at IS NULL OR v.vitals_at <= sampled_at[i]);
END $$;

COMMENT ON FUNCTION samples_store IS 'Stores samples of hosts and agents whose numbers are known, and their latest vitals.';

-- The usual batch in one call: for each agent one range of samples without a gap, all of one shape, given like
-- the arguments of samples_store, the agents in the order of their ids.
--
-- One conditional UPDATE locks, checks and moves the books. It takes an agent only if the range begins exactly
-- above its watermark; a concurrent append of the same agent makes it wait, and check again. So a number is
-- stored once, whoever else writes. An agent that is not active, has moved to another host, or has no number or
-- another shape yet is not taken either. Returns the places of those that were not taken: the caller stores
-- them on the general path, under locks. Agents are locked in the order of their ids, as everywhere.
CREATE FUNCTION samples_append(
    agent_ids uuid[], host_ids uuid[], first_seqs bigint[], last_seqs bigint[], shapes bigint[],
    newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[], spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape bigint[], parts text[],
    cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
    memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
    uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[])
    RETURNS integer[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    every     integer[] := ARRAY (SELECT generate_series(1, cardinality(agent_ids)));
    taken     integer[];
    hosts     integer[];
    agents    integer[];
    host_nos  integer[];
    agent_nos integer[];
BEGIN
    WITH moved AS (
        UPDATE agent_state s
           SET acked_seq = e.last_seq, stored_count = s.stored_count + e.last_seq - e.first_seq + 1
          FROM unnest(agent_ids, host_ids, first_seqs, last_seqs, shapes) WITH ORDINALITY AS e(agent_id, host_id, first_seq, last_seq, shape, place)
          JOIN agents a ON a.id = e.agent_id AND a.host_id = e.host_id AND a.status = 'active'
         WHERE s.agent_id = e.agent_id AND s.acked_seq = e.first_seq - 1 AND s.shape = e.shape
           AND s.host_no IS NOT NULL AND s.agent_no IS NOT NULL
        RETURNING e.place::integer, s.host_no, s.agent_no)
    SELECT array_agg(m.place), array_agg(m.host_no), array_agg(m.agent_no) INTO taken, hosts, agents FROM moved m;
    IF taken IS NULL THEN
        RETURN every;
    ELSIF taken = every THEN
        host_nos := hosts;
        agent_nos := agents;
    ELSE
        host_nos := array_fill(NULL::integer, ARRAY[cardinality(agent_ids)]);
        agent_nos := host_nos;
        FOR n IN 1 .. cardinality(taken) LOOP
            host_nos[taken[n]] := hosts[n];
            agent_nos[taken[n]] := agents[n];
        END LOOP;
    END IF;
    PERFORM samples_store(
        host_nos, agent_nos, newest, fullest_disk_percent, fullest_disk_mount_point, spool_problem, unreadable_mounts,
        owner, sampled_at, seq, shape, parts, cpu_percent, load_1m, load_5m, load_15m,
        memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
        uptime_seconds, process_count, network_rx_bytes, network_tx_bytes);
    RETURN ARRAY (SELECT place FROM generate_subscripts(host_nos, 1) place WHERE host_nos[place] IS NULL);
END $$;

COMMENT ON FUNCTION samples_append IS 'Stores the samples of agents that continue exactly above their watermark. Returns the places of the other agents.';

-- The numbers of agents and hosts, and the shapes of samples: made where they are missing.
CREATE FUNCTION samples_prepare(agent_ids uuid[], host_ids uuid[], shape_hosts uuid[], shapes bigint[], shape_parts jsonb[])
    RETURNS TABLE (agent_no integer, host_no integer)
    LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO agent_numbers (agent_id)
    SELECT DISTINCT id FROM unnest(agent_ids) id
     WHERE NOT EXISTS (SELECT FROM agent_numbers known WHERE known.agent_id = id) ORDER BY id
    ON CONFLICT DO NOTHING;
    INSERT INTO host_vitals (host_id)
    SELECT DISTINCT id FROM unnest(host_ids) id
     WHERE NOT EXISTS (SELECT FROM host_vitals known WHERE known.host_id = id) ORDER BY id
    ON CONFLICT DO NOTHING;
    INSERT INTO sample_shapes AS known (host_no, shape, parts)
    SELECT v.host_no, listed.shape, listed.parts
      FROM unnest(shape_hosts, shapes, shape_parts) AS listed(host_id, shape, parts)
      JOIN host_vitals v ON v.host_id = listed.host_id
     ORDER BY v.host_no, listed.shape
    ON CONFLICT (host_no, shape) DO UPDATE SET seen_on = excluded.seen_on WHERE known.seen_on < excluded.seen_on;
    RETURN QUERY
    SELECT n.agent_no, v.host_no
      FROM unnest(agent_ids, host_ids) WITH ORDINALITY AS e(agent_id, host_id, place)
      JOIN agent_numbers n ON n.agent_id = e.agent_id
      JOIN host_vitals v ON v.host_id = e.host_id
     ORDER BY e.place;
END $$;

COMMENT ON FUNCTION samples_prepare IS 'The numbers of agents and hosts, in the order of the arguments. Makes those that are missing, and stores the shapes.';

-- A row that an instance of the previous version inserts. It has locked the agent, and moves the books itself.
CREATE FUNCTION host_metrics_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    list     jsonb;
    list_id  bigint;
    numbers  record;
    fullest  record;
    sizes    bigint[];
BEGIN
    SELECT coalesce(jsonb_agg(part.content ORDER BY d.n, part.n), '[]'), coalesce(array_agg(part.size ORDER BY d.n, part.n), '{}')
      INTO list, sizes
      FROM ROWS FROM (jsonb_to_recordset(NEW.disks) AS (mount_point text, device text, fs_type text, total_bytes bigint, used_bytes bigint))
           WITH ORDINALITY AS d(mount_point, device, fs_type, total_bytes, used_bytes, n)
     CROSS JOIN LATERAL (VALUES
           (1, jsonb_build_object('kind', 'disk_used', 'name', d.mount_point, 'device', d.device, 'fs_type', d.fs_type), d.used_bytes),
           (2, jsonb_build_object('kind', 'disk_total', 'name', d.mount_point), d.total_bytes)) AS part(n, content, size);
    list_id := ('x' || encode(substr(sha256(convert_to(list::text, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;
    SELECT * INTO numbers FROM samples_prepare(ARRAY[NEW.agent_id], ARRAY[NEW.host_id], ARRAY[NEW.host_id], ARRAY[list_id], ARRAY[list]);
    SELECT least(100 * d.used_bytes::double precision / d.total_bytes, 100) AS percent, d.mount_point INTO fullest
      FROM jsonb_to_recordset(NEW.disks) AS d(mount_point text, used_bytes bigint, total_bytes bigint)
     WHERE d.total_bytes > 0 ORDER BY percent DESC, d.mount_point COLLATE "C" LIMIT 1;
    PERFORM samples_store(
        ARRAY[numbers.host_no], ARRAY[numbers.agent_no], ARRAY[1], ARRAY[floor(fullest.percent)::smallint], ARRAY[fullest.mount_point],
        ARRAY[NULL::text], ARRAY[NULL::jsonb],
        ARRAY[1], ARRAY[NEW.sampled_at], ARRAY[NEW.seq], ARRAY[list_id], ARRAY[sizes::text],
        ARRAY[NEW.cpu_percent::real], ARRAY[least(NEW.load_1m, 3.4e38)::real], ARRAY[least(NEW.load_5m, 3.4e38)::real],
        ARRAY[least(NEW.load_15m, 3.4e38)::real],
        ARRAY[NEW.memory_used_bytes], ARRAY[NEW.memory_total_bytes], ARRAY[NEW.swap_used_bytes], ARRAY[NEW.swap_total_bytes],
        ARRAY[NEW.uptime_seconds], ARRAY[least(NEW.process_count, 2147483647)::integer],
        ARRAY[NEW.network_rx_bytes], ARRAY[NEW.network_tx_bytes]);
    RETURN NEW;
END $$;

COMMENT ON FUNCTION host_metrics_insert IS 'Stores a sample that is inserted into host_metrics, as instances of the previous version do.';

CREATE TRIGGER host_metrics_insert INSTEAD OF INSERT ON host_metrics
    FOR EACH ROW EXECUTE FUNCTION host_metrics_insert();

-- ---- What is known already -----------------------------------------------------------------------

INSERT INTO agent_numbers (agent_id) SELECT id FROM agents ORDER BY created_at, id;

-- The latest vitals of the previous version. Its row of a host has all of them or none.
INSERT INTO host_vitals (
       host_id, vitals_at, memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds,
       network_rx_bytes, network_tx_bytes, process_count, cpu_percent, load_1m, load_5m, load_15m,
       fullest_disk_percent, fullest_disk_mount_point)
SELECT id, vitals_at, memory_used_bytes, CASE WHEN vitals_at IS NOT NULL THEN memory_total_bytes END, swap_used_bytes, swap_total_bytes,
       uptime_seconds, network_rx_bytes, network_tx_bytes, least(process_count, 2147483647)::integer, cpu_percent::real,
       least(load_1m, 3.4e38)::real, least(load_5m, 3.4e38)::real, least(load_15m, 3.4e38)::real,
       fullest_disk_percent, fullest_disk_mount_point
  FROM hosts ORDER BY created_at, id
ON CONFLICT DO NOTHING;

ANALYZE agent_numbers;
ANALYZE host_vitals;

REVOKE EXECUTE ON FUNCTION
    hosts_number, agents_moved, sample_disks, samples_now, sample_hours_ensure, sample_hour_take, host_samples, samples_store, samples_append,
    samples_prepare, host_metrics_insert FROM PUBLIC;
