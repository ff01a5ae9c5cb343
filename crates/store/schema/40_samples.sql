-- Samples as they arrive: what stands for hosts and agents, the latest vitals, the lists of parts, and the tables of the hours that are not
-- compacted yet.
--
-- Integers stand for the ids of hosts and agents. What does not change between samples (the names of disks and the like) is kept once for the
-- whole fleet, as a shape. New samples go into a small table for each hour of *arrival*; a closed hour is compacted (50_history.sql) and
-- dropped as a whole.

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
    shape                    uuid,
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
) WITH (fillfactor = 50, autovacuum_analyze_scale_factor = 10);
-- Every heartbeat changes a row, and nothing that plans depend on: so the table is analysed after ten changes for each row. ANALYZE
-- counts the elements of arrays, which took most of its time here, for statistics that no query uses.
ALTER TABLE host_vitals ALTER COLUMN parts SET STATISTICS 0;
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
COMMENT ON FUNCTION hosts_number IS 'Gives a new host its number.';
CREATE TRIGGER hosts_number AFTER INSERT ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_number();

-- Without the numbers of its host an agent's samples take the general path, which sets them.
CREATE FUNCTION agents_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_state s SET host_no = NULL, numbered_host = NULL WHERE s.agent_id = NEW.id;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION agents_moved IS 'Forgets the host that an agent has left.';
CREATE TRIGGER agents_moved AFTER UPDATE OF host_id ON agents
    FOR EACH ROW WHEN (NEW.host_id <> OLD.host_id) EXECUTE FUNCTION agents_moved();

-- ---- Lists of parts ------------------------------------------------------------------------------
-- The template from which format() makes the column disks of host_metrics. A disk is a part of the kind disk_used, and the part after it of the
-- kind disk_total and the same name.
CREATE FUNCTION sample_disks(parts jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '['::text || coalesce(string_agg(
               format('{"mount_point": %s, "device": %s, "fs_type": %s, "total_bytes": %%%s$s, "used_bytes": %%%s$s}',
                      replace((part -> 'name')::text, '%', '%%'), replace(coalesce(part -> 'device', '""')::text, '%', '%%'),
                      replace(coalesce(part -> 'fs_type', '""')::text, '%', '%%'), n + 1, n), ', '::text ORDER BY n), ''::text) || ']'::text
      FROM jsonb_array_elements(parts) WITH ORDINALITY AS listed(part, n)
     WHERE part ->> 'kind' = 'disk_used' AND n < jsonb_array_length(parts);
$$;
COMMENT ON FUNCTION sample_disks IS 'A template for format(): with the values of a sample''s parts it gives the JSON of its disks.';

-- OFFSET 0: a list is taken apart once, whatever the query around it asks of its parts. Whoever reads the views of history may
-- call it: it reads nothing but its argument.
CREATE FUNCTION shape_parts(list jsonb) RETURNS TABLE (n bigint, kind text, name text, counter boolean) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT p.n, p.part ->> 'kind', p.part ->> 'name', coalesce((p.part ->> 'counter')::boolean, false)
      FROM jsonb_array_elements(list) WITH ORDINALITY p(part, n)
    OFFSET 0;
END;
COMMENT ON FUNCTION shape_parts IS 'The parts of a list of sample_shapes, and the places of their values.';

-- Whatever the values are: the content of one row must not make a query over many hosts fail.
CREATE FUNCTION disks_json(template text, list jsonb, parts bigint[]) RETURNS jsonb LANGUAGE sql STABLE
    RETURN CASE WHEN cardinality(array_remove(parts, NULL)) = jsonb_array_length(list) THEN format(template, VARIADIC parts::text[])::jsonb END;
COMMENT ON FUNCTION disks_json IS 'The disks among the parts of a sample; null if it does not have the parts of the list.';

CREATE TABLE sample_shapes (
    shape   uuid  PRIMARY KEY,
    seen_on date  NOT NULL DEFAULT current_date,
    parts   jsonb NOT NULL,
    disks   text  NOT NULL GENERATED ALWAYS AS (sample_disks(parts)) STORED
);
COMMENT ON TABLE sample_shapes IS 'What the values in the parts of samples are: one row for each list of parts that the fleet has had.';
COMMENT ON COLUMN sample_shapes.shape IS 'The first 16 bytes of the SHA-256 of the list: every instance names it alike without asking, and nobody can make two lists of one name.';
COMMENT ON COLUMN sample_shapes.seen_on IS 'A day on which it was in use, about the last one: a list that no kept sample or rollup has is removed.';
COMMENT ON COLUMN sample_shapes.parts IS 'The list: [{kind, name, …}]; counter is true where the value is a counter.';
COMMENT ON COLUMN sample_shapes.disks IS 'The disks among the parts, as a template: see sample_disks.';

CREATE TABLE agent_shapes (
    agent_no integer NOT NULL,
    day      date    NOT NULL,
    shape    uuid    NOT NULL,
    PRIMARY KEY (agent_no, day, shape)
);
COMMENT ON TABLE agent_shapes IS 'Which lists of parts an agent began to use on a day: it bounds their number. Removed after two days.';
COMMENT ON COLUMN agent_shapes.agent_no IS 'The agent, by its number in agent_numbers.';
COMMENT ON COLUMN agent_shapes.day IS 'The day, in UTC.';
COMMENT ON COLUMN agent_shapes.shape IS 'The list.';

-- ---- Samples of the hours that are not compacted yet ---------------------------------------------
CREATE TABLE sample_hours (
    arrived_hour    timestamptz PRIMARY KEY,
    sealed          boolean NOT NULL DEFAULT false,
    compacted_below integer NOT NULL DEFAULT 0,
    finished_at     timestamptz,
    finished_xid    xid
);
COMMENT ON TABLE sample_hours IS 'The hours of arrival that have, or had, a partition of samples_open.';
COMMENT ON COLUMN sample_hours.arrived_hour IS 'When the hour begins.';
COMMENT ON COLUMN sample_hours.sealed IS 'Whether no sample is added any more. Set under the hour''s advisory lock, which every writer shares.';
COMMENT ON COLUMN sample_hours.compacted_below IS 'The samples of hosts below this number are in sample_chunks, but for hosts_set_aside, and are not read from samples_open any more.';
COMMENT ON COLUMN sample_hours.finished_at IS 'When all its samples were in sample_chunks; null before. Set with the last of them.';
COMMENT ON COLUMN sample_hours.finished_xid IS 'The transaction that finished it: its partition is dropped when no snapshot is older.';

CREATE TABLE hosts_set_aside (
    arrived_hour timestamptz NOT NULL,
    host_no      integer     NOT NULL,
    since        timestamptz NOT NULL DEFAULT now(),
    tried_at     timestamptz NOT NULL DEFAULT now(),
    tries        integer     NOT NULL DEFAULT 1,
    reason       text        NOT NULL,
    PRIMARY KEY (arrived_hour, host_no)
);
COMMENT ON TABLE hosts_set_aside IS 'Hosts whose samples of an arrival hour could not be compacted. They are read from samples_open until a later try succeeds, which removes the note.';
COMMENT ON COLUMN hosts_set_aside.arrived_hour IS 'The arrival hour.';
COMMENT ON COLUMN hosts_set_aside.host_no IS 'The host, by its number in host_vitals.';
COMMENT ON COLUMN hosts_set_aside.since IS 'When the first try failed.';
COMMENT ON COLUMN hosts_set_aside.tried_at IS 'When the last try failed.';
COMMENT ON COLUMN hosts_set_aside.tries IS 'How many have failed.';
COMMENT ON COLUMN hosts_set_aside.reason IS 'The error of the last one.';

CREATE TABLE samples_open (
    arrived_hour       timestamptz NOT NULL,
    sampled_at         timestamptz NOT NULL,
    seq                bigint      NOT NULL,
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
    shape              uuid        NOT NULL,
    parts              bigint[]    NOT NULL
) PARTITION BY RANGE (arrived_hour);
-- An hour has some hundred rows of a host, which need no order: equal keys share an entry of the index.
CREATE INDEX samples_open_host ON samples_open (host_no);
COMMENT ON TABLE samples_open IS 'New samples, one partition for each hour in which they arrived. Not for readers: see the view host_metrics.';
COMMENT ON COLUMN samples_open.arrived_hour IS 'The hour that was open when the sample was stored.';
COMMENT ON COLUMN samples_open.sampled_at IS 'When the sample was taken, as the agent says.';
COMMENT ON COLUMN samples_open.seq IS 'The agent''s number of the sample.';
COMMENT ON COLUMN samples_open.host_no IS 'The host, by its number in host_vitals.';
COMMENT ON COLUMN samples_open.agent_no IS 'The agent that took it, by its number in agent_numbers.';
SELECT comments_copy('samples_open', 'host_vitals');

-- One snapshot has the chunks of a host and that the host is compacted: a step commits both together. The planner does not know which hours
-- are finished: a reader looks for its host in their partitions too, and leaves out what it finds, until they are dropped.
CREATE VIEW samples_visible AS
    SELECT o.*
      FROM sample_hours h
      JOIN samples_open o ON o.arrived_hour = h.arrived_hour
     WHERE h.finished_at IS NULL
       AND (o.host_no >= h.compacted_below
            OR EXISTS (SELECT FROM hosts_set_aside a WHERE a.arrived_hour = o.arrived_hour AND a.host_no = o.host_no));
COMMENT ON VIEW samples_visible IS 'The samples that are not compacted yet: whatever moment a reader sees, each sample is here or in sample_chunks.';
SELECT comments_copy('samples_visible', 'samples_open');

-- ---- How many samples an agent has ---------------------------------------------------------------
CREATE TABLE agent_hours (
    agent_no   integer NOT NULL,
    hour       integer NOT NULL,
    samples    integer NOT NULL,
    counted_on date    NOT NULL DEFAULT current_date,
    PRIMARY KEY (agent_no, hour)
);
COMMENT ON TABLE agent_hours IS 'How many samples are stored of past hours for which an agent has delivered late ones: they are counted once, not with every report. Removed after two days, and counted again when necessary.';
COMMENT ON COLUMN agent_hours.agent_no IS 'The agent, by its number in agent_numbers.';
COMMENT ON COLUMN agent_hours.hour IS 'The hour in which the samples were taken, in hours since 1970. It is before newest_hour in agent_state.';
COMMENT ON COLUMN agent_hours.samples IS 'How many there are.';
COMMENT ON COLUMN agent_hours.counted_on IS 'When the row was made.';

CREATE TABLE metric_gaps (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id    uuid        NOT NULL,
    first_seq   bigint      NOT NULL,
    last_seq    bigint      NOT NULL CHECK (last_seq >= first_seq),
    kind        text        NOT NULL CHECK (kind IN ('not sent', 'declared', 'rejected', 'dead letter')),
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX metric_gaps_agent ON metric_gaps (agent_id, first_seq);
COMMENT ON TABLE metric_gaps IS 'Ranges of numbers for which no sample is stored, and why.';
COMMENT ON COLUMN metric_gaps.id IS 'In order of recording.';
COMMENT ON COLUMN metric_gaps.agent_id IS 'Whose numbers.';
COMMENT ON COLUMN metric_gaps.first_seq IS 'The first missing number.';
COMMENT ON COLUMN metric_gaps.last_seq IS 'The last missing number.';
COMMENT ON COLUMN metric_gaps.kind IS 'not sent (skipped), declared (the agent lost them), rejected (broke the rules), or dead letter (the database refused them).';
COMMENT ON COLUMN metric_gaps.reason IS 'More of why.';
COMMENT ON COLUMN metric_gaps.recorded_at IS 'When it was recorded.';
-- The agents that had a gap lately, without reading gaps: one agent may have thousands.
CREATE INDEX agent_state_gaps ON agent_state (last_gap_at) WHERE last_gap_at IS NOT NULL;
CREATE INDEX agent_state_dead_letters ON agent_state (last_dead_letter_at) WHERE last_dead_letter_at IS NOT NULL;

-- ---- Appending -----------------------------------------------------------------------------------
CREATE FUNCTION samples_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()';
COMMENT ON FUNCTION samples_now IS 'The clock by which samples arrive. Tests replace it.';

-- The newest open hour that has begun; the next one if none has. An hour is sealed under the exclusive lock, so that it gets no sample
-- after it was seen as sealed. The second look sees a seal that was committed between the first look and the lock.
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
COMMENT ON FUNCTION sample_hour_take IS 'The hour that samples are added to. It stays open until the transaction ends.';

-- Stores samples, given as one array for each column, and updates the latest vitals where a sample is newer. `owner` is the place of a sample's
-- host and agent in `host_nos` and `agent_nos`; samples of a host that is null there are left out. The arguments up to `unreadable_mounts`
-- have an entry for each host and agent: `newest` is the place of its newest sample, null where another entry of the same host has it. The
-- parts of sample i are the values from place part_starts[i] to just before part_starts[i + 1].
--
-- PL/pgSQL unpacks arrays, and a slice of an unpacked array packs the whole of it. A subquery is evaluated once and returns it packed.
-- The settings, here and below: agents and hosts are looked up by their keys whatever the statistics say, by plans that a session keeps.
-- Plans of its first calls would read whole tables, because those were small or not analysed then.
CREATE FUNCTION samples_store(
    host_nos integer[], agent_nos integer[], newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[],
    spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape uuid[], part_values bigint[], part_starts integer[],
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
    SELECT hour, host_nos[owner[i]], agent_nos[owner[i]], sampled_at[i], seq[i], shape[i],
           (SELECT part_values)[part_starts[i] : part_starts[i + 1] - 1],
           cpu_percent[i], load_1m[i], load_5m[i], load_15m[i],
           memory_used_bytes[i], memory_total_bytes[i], swap_used_bytes[i], swap_total_bytes[i],
           uptime_seconds[i], process_count[i], network_rx_bytes[i], network_tx_bytes[i]
      FROM generate_series(1, cardinality(owner)) i
     WHERE host_nos[owner[i]] IS NOT NULL;
    UPDATE host_vitals v
       SET shape = shape[i], vitals_at = sampled_at[i], parts = (SELECT part_values)[part_starts[i] : part_starts[i + 1] - 1],
           cpu_percent = cpu_percent[i], load_1m = load_1m[i], load_5m = load_5m[i], load_15m = load_15m[i],
           memory_used_bytes = memory_used_bytes[i], memory_total_bytes = memory_total_bytes[i],
           swap_used_bytes = swap_used_bytes[i], swap_total_bytes = swap_total_bytes[i],
           uptime_seconds = uptime_seconds[i], process_count = process_count[i],
           network_rx_bytes = network_rx_bytes[i], network_tx_bytes = network_tx_bytes[i],
           fullest_disk_percent = fullest_disk_percent[e], fullest_disk_mount_point = fullest_disk_mount_point[e],
           spool_problem = spool_problem[e], unreadable_mounts = unreadable_mounts[e]
      FROM unnest(host_nos, newest) WITH ORDINALITY AS entry(host_no, i, e)
     WHERE v.host_no = entry.host_no AND entry.i IS NOT NULL AND (v.vitals_at IS NULL OR v.vitals_at <= sampled_at[i]);
END $$;
COMMENT ON FUNCTION samples_store IS 'Stores samples of hosts and agents whose numbers are known, and their latest vitals.';

-- Stores runs of samples, one for each agent, that continue exactly above the agents' watermarks. One conditional UPDATE moves the
-- watermarks; the samples of those agents alone are stored that it has moved. The hours of a run do not go back, within it or behind the
-- agent's newest one: so newest_hour_samples tells how many samples its first hour has, and later hours have none. The caller has
-- bounded the hours within the run by most_of_hour. Returns the places of the runs that were not taken.
--
-- OFFSET 0 lets the few agents that are not active be found by their small index. lock_timeout: see samples.rs.
CREATE FUNCTION samples_append(
    most_of_hour integer, agent_ids uuid[], host_ids uuid[], first_seqs bigint[], last_seqs bigint[], shapes uuid[],
    first_hours integer[], last_hours integer[], samples_of_last integer[],
    newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[], spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape uuid[], part_values bigint[], part_starts integer[],
    cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
    memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
    uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[])
    RETURNS integer[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan SET lock_timeout = '250ms' AS $$
DECLARE
    every integer[] := ARRAY (SELECT generate_series(1, cardinality(agent_ids)));
    taken integer[];
    hosts integer[]; agents integer[];       -- Of those that were taken.
    host_nos integer[]; agent_nos integer[]; -- Of all, null where one was not taken.
BEGIN
    WITH moved AS (
        UPDATE agent_state s
           SET acked_seq = e.last_seq, stored_count = s.stored_count + e.last_seq - e.first_seq + 1, newest_hour = e.last_hour,
               newest_hour_samples = e.of_last + CASE s.newest_hour WHEN e.last_hour THEN s.newest_hour_samples ELSE 0 END
          FROM unnest(agent_ids, host_ids, first_seqs, last_seqs, shapes, first_hours, last_hours, samples_of_last)
               WITH ORDINALITY AS e(agent_id, host_id, first_seq, last_seq, shape, first_hour, last_hour, of_last, place)
         WHERE s.agent_id = e.agent_id AND s.numbered_host = e.host_id AND s.acked_seq = e.first_seq - 1 AND s.shape = e.shape
           AND s.host_no IS NOT NULL AND s.agent_no IS NOT NULL
           AND (s.newest_hour < e.first_hour
                OR s.newest_hour = e.first_hour AND s.newest_hour_samples + e.last_seq - e.first_seq < most_of_hour)
           AND NOT EXISTS (SELECT FROM agents a WHERE a.id = e.agent_id AND a.status <> 'active' OFFSET 0)
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
        owner, sampled_at, seq, shape, part_values, part_starts, cpu_percent, load_1m, load_5m, load_15m,
        memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes,
        uptime_seconds, process_count, network_rx_bytes, network_tx_bytes);
    RETURN CASE WHEN taken = every THEN '{}' ELSE ARRAY (SELECT place FROM generate_subscripts(host_nos, 1) place WHERE host_nos[place] IS NULL) END;
END $$;
COMMENT ON FUNCTION samples_append IS 'The path of runs: one call for a batch of agents. Returns the places of those that must take the general one.';

-- Whatever an agent that is on the general path needs before its samples are stored. Its row of agent_state is locked, so nobody else adds
-- lists to it. `users` and `used` are the agents (by their places) and lists (by their places) that are not the agents' present ones, in the
-- order of their first samples; at most so many a day are begun, and `refused` are the places of the others. A list that is known is only
-- read; its seen_on is written once in a week, so that appends do not queue for a row that the fleet shares.
CREATE FUNCTION samples_prepare(
    most_lists integer, agent_ids uuid[], host_ids uuid[], shapes uuid[], shape_lists jsonb[], users integer[], used integer[],
    OUT agent_nos integer[], OUT host_nos integer[], OUT refused bigint[])
    LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan AS $$
DECLARE today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    INSERT INTO agent_numbers (agent_id)
    SELECT DISTINCT id FROM unnest(agent_ids) id
     WHERE NOT EXISTS (SELECT FROM agent_numbers known WHERE known.agent_id = id) ORDER BY id
    ON CONFLICT DO NOTHING;
    INSERT INTO host_vitals (host_id)
    SELECT DISTINCT id FROM unnest(host_ids) id
     WHERE NOT EXISTS (SELECT FROM host_vitals known WHERE known.host_id = id) ORDER BY id
    ON CONFLICT DO NOTHING;
    SELECT array_agg(n.agent_no ORDER BY e.place), array_agg(v.host_no ORDER BY e.place) INTO agent_nos, host_nos
      FROM unnest(agent_ids, host_ids) WITH ORDINALITY AS e(agent_id, host_id, place)
      JOIN agent_numbers n ON n.agent_id = e.agent_id
      JOIN host_vitals v ON v.host_id = e.host_id;
    SELECT coalesce(array_agg(begun.place), '{}') INTO refused
      FROM (SELECT u.place, row_number() OVER (PARTITION BY agent_nos[u.agent] ORDER BY u.place)
                   + (SELECT count(*) FROM agent_shapes k WHERE k.agent_no = agent_nos[u.agent] AND k.day = today) AS nth
              FROM unnest(users, used) WITH ORDINALITY AS u(agent, list, place)
             WHERE NOT EXISTS (SELECT FROM agent_shapes k
                                WHERE k.agent_no = agent_nos[u.agent] AND k.day = today AND k.shape = shapes[u.list])) begun
     WHERE begun.nth > most_lists;
    INSERT INTO agent_shapes (agent_no, day, shape)
    SELECT agent_nos[u.agent], today, shapes[u.list] FROM unnest(users, used) WITH ORDINALITY AS u(agent, list, place)
     WHERE u.place <> ALL (refused)
    ON CONFLICT DO NOTHING;
    INSERT INTO sample_shapes (shape, parts)
    SELECT shapes[l.list], shape_lists[l.list]
      FROM (SELECT DISTINCT u.list FROM unnest(users, used) WITH ORDINALITY AS u(agent, list, place) WHERE u.place <> ALL (refused)) l
     WHERE NOT EXISTS (SELECT FROM sample_shapes k WHERE k.shape = shapes[l.list] AND k.seen_on >= current_date - 7)
     ORDER BY shapes[l.list]
    ON CONFLICT (shape) DO UPDATE SET seen_on = excluded.seen_on;
END $$;
COMMENT ON FUNCTION samples_prepare IS 'Gives agents and hosts their numbers, and stores the lists of parts that agents begin to use.';

REVOKE EXECUTE ON FUNCTION
    hosts_number, agents_moved, sample_disks, samples_now, sample_hour_take, samples_store, samples_append, samples_prepare FROM PUBLIC;
