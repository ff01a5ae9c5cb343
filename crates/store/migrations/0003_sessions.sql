-- Sessions and presence: who has a live stream, on which instance, and what
-- became of it. Opening and closing a stream writes here; a heartbeat does not.

ALTER TABLE ingest_instances ADD COLUMN grace_until timestamptz;

COMMENT ON COLUMN ingest_instances.grace_until IS
    'Until then the lapsed lease is not acted on, because nobody could have renewed it: all instances, or the database, were away.';

ALTER TABLE agent_state
    ADD COLUMN cause          text CHECK (cause IN ('connected', 'goodbye', 'lost', 'drained', 'instance lost', 'replaced', 'refused')),
    ADD COLUMN epoch          bigint NOT NULL DEFAULT 0,
    ADD COLUMN instance_id    uuid,
    ADD COLUMN connected_at   timestamptz,
    ADD COLUMN last_seen_at   timestamptz,
    ADD COLUMN online_until   timestamptz,
    ADD COLUMN boot_id        text   NOT NULL DEFAULT '',
    ADD COLUMN run_id         text   NOT NULL DEFAULT '',
    ADD COLUMN earlier_lives  text[] NOT NULL DEFAULT '{}',
    ADD COLUMN refused_lives  text[] NOT NULL DEFAULT '{}',
    ADD COLUMN clone_seen_at  timestamptz,
    ADD COLUMN clock_skew_ms  bigint,
    ADD COLUMN acked_seq      bigint NOT NULL DEFAULT 0,
    ADD COLUMN stored_count   bigint NOT NULL DEFAULT 0,
    ADD COLUMN rejected_count bigint NOT NULL DEFAULT 0,
    ADD COLUMN gap_count      bigint NOT NULL DEFAULT 0,
    ADD CHECK (stored_count + rejected_count + gap_count = acked_seq);

-- What an instance holds, and what a drain left to come back.
CREATE INDEX agent_state_instance ON agent_state (instance_id) WHERE instance_id IS NOT NULL;
CREATE INDEX agent_state_drained ON agent_state (online_until) WHERE online_until IS NOT NULL;

COMMENT ON COLUMN agent_state.cause IS 'Why presence is what it is: connected, goodbye, lost, drained, instance lost, replaced, or refused (its agent is no longer active).';
COMMENT ON COLUMN agent_state.epoch IS 'Counts the agent''s streams: only the newest one may change its presence.';
COMMENT ON COLUMN agent_state.instance_id IS 'The instance that holds the newest stream; null when none does.';
COMMENT ON COLUMN agent_state.connected_at IS 'When the newest stream was opened.';
COMMENT ON COLUMN agent_state.last_seen_at IS 'When the agent was last heard; while it is online, when it connected.';
COMMENT ON COLUMN agent_state.online_until IS 'After a drain: until when the agent counts as online without a stream, for it to come back.';
COMMENT ON COLUMN agent_state.boot_id IS 'Boot of the machine that the newest stream came from.';
COMMENT ON COLUMN agent_state.run_id IS 'Start of the agent program that the newest stream came from.';
COMMENT ON COLUMN agent_state.earlier_lives IS 'Boots and runs that newer ones took over from: one that comes back proves two copies.';
COMMENT ON COLUMN agent_state.refused_lives IS 'Boots and runs that were proven to be copies.';
COMMENT ON COLUMN agent_state.clone_seen_at IS 'When a copy of this identity was last refused.';
COMMENT ON COLUMN agent_state.clock_skew_ms IS 'The agent''s clock minus the database''s, when it last connected.';
COMMENT ON COLUMN agent_state.acked_seq IS 'Every sample up to this number is stored, rejected, or recorded as a gap.';
COMMENT ON COLUMN agent_state.stored_count IS 'Samples stored. With rejected_count and gap_count it adds up to acked_seq.';
COMMENT ON COLUMN agent_state.rejected_count IS 'Samples rejected.';
COMMENT ON COLUMN agent_state.gap_count IS 'Samples that were never sent or were declared lost.';

COMMENT ON COLUMN agent_events.kind IS 'What kind of change: status, presence, clone, or deleted.';

-- Whether a host's known identifiers and these are of one machine: the strongest
-- kind that both carry decides. Null where they have none in common.
CREATE FUNCTION same_machine(host uuid, identifiers jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT bool_or(identifiers -> known.kind ? known.value)
      FROM host_identifiers known
     WHERE known.host_id = host
       AND known.kind = (
           SELECT strongest.kind FROM host_identifiers strongest
            WHERE strongest.host_id = host AND identifiers ? strongest.kind
            ORDER BY array_position(ARRAY['cloud', 'hardware', 'machine', 'network'], strongest.kind) LIMIT 1);
$$;

-- Opens streams, in one statement for many agents: authenticates each against
-- its key and status, refuses copies, and claims the next epoch for the rest.
-- `opens` is an array of {agent_id, key, boot_id, run_id, version, capabilities,
-- facts, skew_ms}; one agent stands in it once. An instance that was fenced, and
-- does not know it yet, opens nothing: nobody would look after its streams.
CREATE FUNCTION sessions_open(instance uuid, opens jsonb)
    RETURNS TABLE (agent_id uuid, verdict text, epoch bigint, acked_seq bigint, host_id uuid)
    LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    o         record;
    agent     agents;
    state     agent_state;
    came_back boolean;
BEGIN
    PERFORM FROM ingest_instances i WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR o IN
        SELECT * FROM jsonb_to_recordset(opens) AS given(
            agent_id uuid, key text, boot_id text, run_id text, version text, capabilities jsonb, facts jsonb, skew_ms bigint)
         ORDER BY given.agent_id
    LOOP
        agent_id := o.agent_id; epoch := 0; acked_seq := 0; host_id := NULL;
        SELECT * INTO state FROM agent_state s WHERE s.agent_id = o.agent_id FOR UPDATE;
        SELECT * INTO agent FROM agents a WHERE a.id = o.agent_id;
        IF agent.id IS NULL THEN
            verdict := 'deleted'; RETURN NEXT; CONTINUE;
        ELSIF agent.key <> decode(o.key, 'hex') THEN
            verdict := 'key_mismatch'; RETURN NEXT; CONTINUE;
        ELSIF agent.status <> 'active' THEN
            verdict := agent.status; RETURN NEXT; CONTINUE;
        END IF;
        came_back := (o.boot_id <> state.boot_id AND o.boot_id = ANY (state.earlier_lives))
                  OR (o.run_id <> state.run_id AND o.run_id = ANY (state.earlier_lives));
        IF (state.presence = 'online' AND same_machine(agent.host_id, o.facts -> 'identifiers') = false)
           OR o.boot_id = ANY (state.refused_lives) OR o.run_id = ANY (state.refused_lives) THEN
            PERFORM session_clone_seen(state, 'a copy of this identity was refused');
            verdict := 'identity_in_use'; RETURN NEXT; CONTINUE;
        ELSIF came_back THEN
            PERFORM session_clone_seen(state, 'two copies of this identity are live: the second is refused from now on');
        END IF;
        UPDATE agent_state s
           SET epoch = s.epoch + 1, instance_id = instance, presence = 'online', cause = 'connected',
               presence_since = CASE s.presence WHEN 'online' THEN s.presence_since ELSE now() END,
               connected_at = now(), last_seen_at = now(), online_until = NULL, clock_skew_ms = coalesce(o.skew_ms, s.clock_skew_ms),
               boot_id = o.boot_id, run_id = o.run_id,
               earlier_lives = lives_add(s.earlier_lives, s.boot_id, s.run_id, o.boot_id, o.run_id),
               refused_lives = CASE WHEN came_back THEN lives_add(s.refused_lives, s.boot_id, s.run_id, o.boot_id, o.run_id)
                                    ELSE s.refused_lives END
         WHERE s.agent_id = o.agent_id
        RETURNING s.epoch, s.acked_seq INTO epoch, acked_seq;
        IF state.presence = 'offline' THEN
            INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
            VALUES (o.agent_id, 'presence', 'offline', 'online', 'connected');
        END IF;
        PERFORM agent_says(agent, o.version, o.capabilities, o.facts);
        verdict := 'open'; host_id := agent.host_id;
        RETURN NEXT;
    END LOOP;
END $$;

-- The last few lives before the present one, which is not among them.
CREATE FUNCTION lives_add(lives text[], boot text, run text, boot_now text, run_now text)
    RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(life ORDER BY number), '{}')
      FROM (SELECT life, max(number) AS number
              FROM unnest(lives || ARRAY[boot, run]) WITH ORDINALITY AS given(life, number)
             WHERE life NOT IN ('', boot_now, run_now)
             GROUP BY life ORDER BY 2 DESC LIMIT 32) newest;
$$;

-- At most one event in ten minutes, however often a copy knocks.
CREATE FUNCTION session_clone_seen(state agent_state, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF state.clone_seen_at > now() - interval '10 minutes' THEN
        RETURN;
    END IF;
    UPDATE agent_state SET clone_seen_at = now() WHERE agent_id = state.agent_id;
    INSERT INTO agent_events (agent_id, kind, reason) VALUES (state.agent_id, 'clone', what);
END $$;

-- What an agent says of itself and its machine, written only where it is new.
CREATE FUNCTION agent_says(agent agents, new_version text, new_capabilities jsonb, new_facts jsonb)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF agent.facts = new_facts AND agent.version = new_version THEN
        RETURN;
    END IF;
    UPDATE agents SET version = new_version, facts = new_facts,
           capabilities = ARRAY (SELECT jsonb_array_elements_text(new_capabilities))
     WHERE id = agent.id;
    UPDATE hosts h
       SET hostname = f.hostname, os = f.os, os_version = f.os_version, arch = f.arch, kernel_version = f.kernel_version,
           mac_addresses = f.mac_addresses, ip_addresses = f.ip_addresses, boot_id = f.boot_id, cpu_count = f.cpu_count,
           memory_total_bytes = f.memory_total_bytes, facts_at = now()
      FROM jsonb_populate_record(NULL::hosts, new_facts) f
     WHERE h.id = agent.host_id;
    INSERT INTO host_identifiers (host_id, kind, value)
    SELECT agent.host_id, kinds.kind, identifiers.value
      FROM jsonb_each(new_facts -> 'identifiers') AS kinds(kind, list),
           jsonb_array_elements_text(kinds.list) AS identifiers(value)
    ON CONFLICT DO NOTHING;
END $$;

-- Closes streams, in one statement for many agents. Only the newest stream of an
-- agent changes anything. A drained agent stays online until it had time to return.
CREATE FUNCTION sessions_close(agents uuid[], epochs bigint[], causes text[], back_in double precision[])
    RETURNS integer LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE touched integer;
BEGIN
    PERFORM FROM agent_state s WHERE s.agent_id = ANY (agents) ORDER BY s.agent_id FOR UPDATE;
    WITH closed AS (
        UPDATE agent_state s
           SET presence = CASE c.cause WHEN 'drained' THEN 'online' ELSE 'offline' END,
               presence_since = CASE c.cause WHEN 'drained' THEN s.presence_since ELSE now() END,
               cause = c.cause, instance_id = NULL, last_seen_at = now(),
               online_until = CASE c.cause WHEN 'drained' THEN now() + make_interval(secs => c.back_in) END
          FROM unnest(agents, epochs, causes, back_in) AS c(agent_id, epoch, cause, back_in)
         WHERE s.agent_id = c.agent_id AND s.epoch = c.epoch AND s.presence = 'online'
        RETURNING s.agent_id, s.presence, s.cause)
    INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
    SELECT closed.agent_id, 'presence', 'online', 'offline', closed.cause FROM closed WHERE closed.presence = 'offline';
    GET DIAGNOSTICS touched = ROW_COUNT;
    RETURN touched;
END $$;

-- Fences the leases that lapsed longer than `grace` ago and ends their streams,
-- and those whose agents did not return from a drain. Any number may run at once,
-- but only who holds a lease may: a sweep that was sent before the database stood
-- still, and arrives after, would find everybody lapsed.
CREATE FUNCTION sessions_sweep(sweeper uuid, grace double precision)
    RETURNS TABLE (fenced integer, lost integer, undrained integer) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    gone      uuid[];
    of_gone   uuid[];
    not_back  uuid[];
BEGIN
    PERFORM FROM ingest_instances i
      WHERE i.id = sweeper AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now() FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH lapsed AS (
        SELECT i.id FROM ingest_instances i
         WHERE NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at < now() - make_interval(secs => grace)
           AND coalesce(i.grace_until, '-infinity') < now()
         ORDER BY i.id FOR UPDATE SKIP LOCKED),
    done AS (UPDATE ingest_instances i SET fenced = true FROM lapsed WHERE i.id = lapsed.id RETURNING i.id)
    SELECT coalesce(array_agg(done.id), '{}') INTO gone FROM done;
    fenced := cardinality(gone);
    -- A statement that was under way when its instance ended may have come in late.
    gone := gone || ARRAY (
        SELECT i.id FROM ingest_instances i
         WHERE i.expires_at > now() - interval '1 hour'
           AND (i.fenced OR i.stopped_at < now() - make_interval(secs => grace)));
    DELETE FROM ingest_instances i
     WHERE i.expires_at < now() - interval '30 days' AND (i.fenced OR i.stopped_at IS NOT NULL);
    -- Who is being opened at this moment is left alone: only rows that were locked as they are here are ended.
    of_gone := ARRAY (SELECT s.agent_id FROM agent_state s WHERE s.instance_id = ANY (gone) ORDER BY s.agent_id FOR UPDATE SKIP LOCKED);
    lost := sessions_end(of_gone, 'instance lost');
    not_back := ARRAY (SELECT s.agent_id FROM agent_state s WHERE s.online_until < now() ORDER BY s.agent_id FOR UPDATE SKIP LOCKED);
    undrained := sessions_end(not_back, 'lost');
    RETURN NEXT;
END $$;

-- For rows that the caller has locked.
CREATE FUNCTION sessions_end(gone uuid[], why text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE touched integer;
BEGIN
    WITH ended AS (
        UPDATE agent_state s SET presence = 'offline', presence_since = now(), cause = why, instance_id = NULL, online_until = NULL
         WHERE s.agent_id = ANY (gone) AND s.presence = 'online' RETURNING s.agent_id)
    INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
    SELECT ended.agent_id, 'presence', 'online', 'offline', why FROM ended;
    GET DIAGNOSTICS touched = ROW_COUNT;
    RETURN touched;
END $$;

-- An instance that was fenced takes its live streams over under its new id: those
-- whose epoch is still the newest and whose agent is still active.
CREATE FUNCTION sessions_reclaim(instance uuid, agents uuid[], epochs bigint[])
    RETURNS SETOF uuid LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM FROM agent_state s WHERE s.agent_id = ANY (agents) ORDER BY s.agent_id FOR UPDATE;
    RETURN QUERY
    WITH held AS (
        SELECT s.agent_id, s.presence FROM agent_state s
          JOIN unnest(agents, epochs) AS c(agent_id, epoch) ON c.agent_id = s.agent_id AND c.epoch = s.epoch
          JOIN agents a ON a.id = s.agent_id AND a.status = 'active'),
    back AS (
        UPDATE agent_state s SET instance_id = instance, presence = 'online', cause = 'connected', online_until = NULL,
               presence_since = CASE s.presence WHEN 'online' THEN s.presence_since ELSE now() END
          FROM held WHERE s.agent_id = held.agent_id RETURNING s.agent_id),
    told AS (
        INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
        SELECT held.agent_id, 'presence', 'offline', 'online', 'connected' FROM held WHERE held.presence = 'offline')
    SELECT back.agent_id FROM back;
END $$;

-- What the web application lists: machines with their agent and its presence.
CREATE VIEW host_overview AS
    SELECT h.id, h.hostname, h.os, h.os_version, h.arch, h.labels, h.created_at, h.retired_at,
           a.id AS agent_id, a.version AS agent_version,
           coalesce(s.presence = 'online', false) AS online, s.presence_since, s.cause AS presence_cause,
           CASE WHEN s.presence = 'online' THEN greatest(s.last_seen_at, least(i.renewed_at, now())) ELSE s.last_seen_at END AS last_seen_at,
           s.clock_skew_ms
      FROM hosts h
      LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      LEFT JOIN agent_state s ON s.agent_id = a.id
      LEFT JOIN ingest_instances i ON i.id = s.instance_id;

COMMENT ON VIEW host_overview IS 'Machines with their active agent and its presence, ready to be listed.';
COMMENT ON COLUMN host_overview.id IS 'The host.';
COMMENT ON COLUMN host_overview.hostname IS 'As its agent last said.';
COMMENT ON COLUMN host_overview.os IS 'Operating system.';
COMMENT ON COLUMN host_overview.os_version IS 'Its version.';
COMMENT ON COLUMN host_overview.arch IS 'Processor architecture.';
COMMENT ON COLUMN host_overview.labels IS 'Key/value labels.';
COMMENT ON COLUMN host_overview.created_at IS 'When the machine was first seen.';
COMMENT ON COLUMN host_overview.retired_at IS 'When it was taken out of service.';
COMMENT ON COLUMN host_overview.agent_id IS 'Its active agent; null when it has none.';
COMMENT ON COLUMN host_overview.agent_version IS 'Version of that agent.';
COMMENT ON COLUMN host_overview.online IS 'Whether that agent has a live stream.';
COMMENT ON COLUMN host_overview.presence_since IS 'Since when.';
COMMENT ON COLUMN host_overview.presence_cause IS 'Why.';
COMMENT ON COLUMN host_overview.last_seen_at IS 'When it was last heard; while it is online, when its instance last renewed its lease.';
COMMENT ON COLUMN host_overview.clock_skew_ms IS 'Its clock minus the database''s.';

REVOKE EXECUTE ON FUNCTION
    same_machine, sessions_open, lives_add, session_clone_seen, agent_says, sessions_close, sessions_sweep, sessions_end,
    sessions_reclaim FROM PUBLIC;
