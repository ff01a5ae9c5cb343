-- What a sample costs, again: an active agent is not looked up, and the values of parts are sent as numbers.
--
-- samples_append looked every agent up in `agents`, to see whether it is active and on which host: a tenth of the call. Now
-- agent_state has the host itself, and whether an agent is active is told by the small index of those that are not.
-- The values of parts were sent as a text for each sample and read twice: 7 % of PostgreSQL's work for a heartbeat.
--
-- No version that was released calls the two functions: they are replaced.

DROP FUNCTION samples_append;
DROP FUNCTION samples_store;

-- Filled by the general path, as host_no was: nothing is rewritten here, and no agent waits. It is not named host_id, because the
-- previous version joins agent_state with agents and asks for a host_id.
ALTER TABLE agent_state ADD COLUMN numbered_host uuid;

COMMENT ON COLUMN agent_state.numbered_host IS 'The host that host_no stands for. Null before the agent''s first sample on this host.';

CREATE OR REPLACE FUNCTION agents_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_state s SET host_no = NULL, numbered_host = NULL WHERE s.agent_id = NEW.id;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION agents_moved IS 'Forgets the host that an agent has left.';

-- Stores samples, given as one array for each column, and updates the latest vitals where a sample is newer.
-- `owner` is the place of a sample's host and agent in `host_nos` and `agent_nos`; samples of a host that is
-- null there are left out. The arguments up to `unreadable_mounts` have an entry for each host and agent:
-- `newest` is the place of its newest sample, null where another entry of the same host has it. The parts of sample i
-- are the values from place part_starts[i] to just before part_starts[i + 1].
--
-- PL/pgSQL unpacks arrays, and a slice of an unpacked array packs the whole of it. A subquery is evaluated once and
-- returns it packed.
CREATE FUNCTION samples_store(
    host_nos integer[], agent_nos integer[], newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[],
    spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape bigint[], part_values bigint[], part_starts integer[],
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
     WHERE v.host_no = entry.host_no AND (v.vitals_at IS NULL OR v.vitals_at <= sampled_at[i]);
END $$;

COMMENT ON FUNCTION samples_store IS 'Stores samples of hosts and agents whose numbers are known, and their latest vitals.';

-- The usual batch in one call: for each agent one run of samples without a gap, all of one shape, given like
-- the arguments of samples_store, the agents in the order of their ids.
--
-- One conditional UPDATE locks, checks and moves the books. It takes an agent only if the run begins exactly
-- above its watermark; a concurrent append of the same agent makes it wait, and check again. So a number is
-- stored once, whoever else writes. An agent that is not active, has moved to another host, or has no number or
-- another shape yet is not taken either. Returns the places of those that were not taken: the caller stores
-- them on the general path, under locks. Agents are locked in the order of their ids, as everywhere. OFFSET 0 makes the
-- lookup of agents that are not active a condition instead of a join, which costs half as much.
CREATE FUNCTION samples_append(
    agent_ids uuid[], host_ids uuid[], first_seqs bigint[], last_seqs bigint[], shapes bigint[],
    newest integer[], fullest_disk_percent smallint[], fullest_disk_mount_point text[], spool_problem text[], unreadable_mounts jsonb[],
    owner integer[], sampled_at timestamptz[], seq bigint[], shape bigint[], part_values bigint[], part_starts integer[],
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
         WHERE s.agent_id = e.agent_id AND s.numbered_host = e.host_id AND s.acked_seq = e.first_seq - 1 AND s.shape = e.shape
           AND s.host_no IS NOT NULL AND s.agent_no IS NOT NULL
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
    IF taken = every THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY (SELECT place FROM generate_subscripts(host_nos, 1) place WHERE host_nos[place] IS NULL);
END $$;

COMMENT ON FUNCTION samples_append IS 'Stores the samples of agents that continue exactly above their watermark. Returns the places of the other agents.';

-- As before, but for the parts.
CREATE OR REPLACE FUNCTION host_metrics_insert() RETURNS trigger LANGUAGE plpgsql AS $$
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
        ARRAY[1], ARRAY[NEW.sampled_at], ARRAY[NEW.seq], ARRAY[list_id], sizes, ARRAY[1, cardinality(sizes) + 1],
        ARRAY[NEW.cpu_percent::real], ARRAY[least(NEW.load_1m, 3.4e38)::real], ARRAY[least(NEW.load_5m, 3.4e38)::real],
        ARRAY[least(NEW.load_15m, 3.4e38)::real],
        ARRAY[NEW.memory_used_bytes], ARRAY[NEW.memory_total_bytes], ARRAY[NEW.swap_used_bytes], ARRAY[NEW.swap_total_bytes],
        ARRAY[NEW.uptime_seconds], ARRAY[least(NEW.process_count, 2147483647)::integer],
        ARRAY[NEW.network_rx_bytes], ARRAY[NEW.network_tx_bytes]);
    RETURN NEW;
END $$;

REVOKE EXECUTE ON FUNCTION samples_store, samples_append FROM PUBLIC;
