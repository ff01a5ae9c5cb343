-- Appends look their agents up by id, whatever PostgreSQL knows of the table.
--
-- A session plans the statements of samples_append once, often before a table of agents that has just been filled is
-- analysed. The planner then expected few active agents, read all of them by the partial index agents_version, and
-- compared each with each entry of the batch: 2,000 agents cost 10 ms a call, 200,000 would have cost a second. OFFSET 0
-- keeps the other conditions out of the subquery, so that it can be answered by the primary key alone.

CREATE OR REPLACE FUNCTION samples_append(
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
         CROSS JOIN LATERAL (SELECT a.host_id, a.status FROM agents a WHERE a.id = e.agent_id OFFSET 0) a
         WHERE s.agent_id = e.agent_id AND a.host_id = e.host_id AND a.status = 'active' AND s.acked_seq = e.first_seq - 1 AND s.shape = e.shape
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
