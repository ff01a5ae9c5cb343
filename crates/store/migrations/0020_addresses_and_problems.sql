-- Events have the address that an agent came from, behind a load balancer the one that the PROXY protocol says. The
-- overview of hosts has the problems that agents report.

-- ---- Problems ----------------------------------------------------------------

-- The same as before, with two more columns.
CREATE OR REPLACE VIEW host_overview AS
    SELECT h.id, h.hostname, h.os, h.os_version, h.arch, h.labels, h.created_at, h.retired_at,
           a.id AS agent_id, a.version AS agent_version,
           coalesce(s.presence = 'online', false) AS online, s.presence_since, s.cause AS presence_cause,
           CASE WHEN s.presence = 'online' THEN greatest(s.last_seen_at, least(i.renewed_at, now())) ELSE s.last_seen_at END AS last_seen_at,
           s.clock_skew_ms,
           v.vitals_at, h.cpu_count, v.cpu_percent::double precision, v.load_1m::double precision, v.memory_used_bytes,
           coalesce(v.memory_total_bytes, h.memory_total_bytes) AS memory_total_bytes,
           v.fullest_disk_percent, v.fullest_disk_mount_point,
           CASE WHEN v.shape IS NULL THEN h.disks ELSE format(d.disks, VARIADIC v.parts::text[])::jsonb END AS disks,
           v.spool_problem, v.unreadable_mounts
      FROM hosts h
      LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      LEFT JOIN agent_state s ON s.agent_id = a.id
      LEFT JOIN ingest_instances i ON i.id = s.instance_id
      JOIN host_vitals v ON v.host_id = h.id
      LEFT JOIN sample_shapes d ON d.host_no = v.host_no AND d.shape = v.shape;

COMMENT ON COLUMN host_overview.spool_problem IS 'Why its agent cannot store samples on its own disk; null while it can.';
COMMENT ON COLUMN host_overview.unreadable_mounts IS 'The mount points of file systems that did not say how full they are: [text]; null where there are none.';

-- ---- Addresses ---------------------------------------------------------------

ALTER TABLE agents ADD COLUMN registered_from inet;
ALTER TABLE agent_events ADD COLUMN address inet;

COMMENT ON COLUMN agents.registered_from IS 'The address from which its key was registered; null where an older version registered it.';
COMMENT ON COLUMN agent_events.address IS 'The address that the agent, or the copy of it, came from: of registrations, connections and clones. Null otherwise.';

-- The same as before, and a registration's event has its address.
CREATE OR REPLACE FUNCTION agents_record() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO agent_events (agent_id, kind, from_status) VALUES (OLD.id, 'deleted', OLD.status);
        PERFORM pg_notify('svc_agents', OLD.id::text);
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        PERFORM FROM hosts h WHERE h.id = NEW.host_id AND h.retired_at IS NULL FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'host % is retired', NEW.host_id USING ERRCODE = 'serialization_failure';
        END IF;
        INSERT INTO agent_state (agent_id) VALUES (NEW.id);
        INSERT INTO agent_events (agent_id, kind, to_status, actor, reason, address)
        VALUES (NEW.id, 'status', NEW.status, NEW.decided_by, coalesce(NEW.decision_reason, NEW.pending_reason), NEW.registered_from);
    ELSIF NEW.status <> OLD.status THEN
        INSERT INTO agent_events (agent_id, kind, from_status, to_status, actor, reason)
        VALUES (NEW.id, 'status', OLD.status, NEW.status, NEW.decided_by, NEW.decision_reason);
        IF NEW.status = 'active' THEN -- Its time to connect begins now.
            UPDATE agent_state s SET presence_since = clock_timestamp() WHERE s.agent_id = NEW.id AND s.presence = 'offline';
            PERFORM agent_admitted(NEW);
        END IF;
        PERFORM pg_notify('svc_agents', NEW.id::text);
    END IF;
    RETURN NULL;
END $$;

-- The same as before, and the event has the address of the copy.
CREATE FUNCTION session_clone_seen(state agent_state, what text, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF state.clone_seen_at > now() - interval '10 minutes' THEN
        RETURN;
    END IF;
    UPDATE agent_state SET clone_seen_at = now() WHERE agent_id = state.agent_id;
    INSERT INTO agent_events (agent_id, kind, reason, address) VALUES (state.agent_id, 'clone', what, seen_from);
END $$;

COMMENT ON FUNCTION session_clone_seen(agent_state, text, inet) IS
    'Records that a copy of an identity was seen: at most one event in ten minutes, however often the copy connects.';

REVOKE EXECUTE ON FUNCTION session_clone_seen(agent_state, text, inet) FROM PUBLIC;

-- The same as before, and each of `opens` may have an address.
CREATE OR REPLACE FUNCTION sessions_open_heard(instance uuid, opens jsonb, heard_within double precision)
    RETURNS TABLE (agent_id uuid, verdict text, epoch bigint, acked_seq bigint, host_id uuid)
    LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    o         record;
    agent     agents;
    state     agent_state;
    came_back boolean;
    moved     boolean;
    liveness  text;
BEGIN
    PERFORM FROM ingest_instances i WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR o IN
        SELECT * FROM jsonb_to_recordset(opens) AS given(
            agent_id uuid, key text, boot_id text, run_id text, version text, capabilities jsonb, facts jsonb, skew_ms bigint,
            requested_at timestamptz, valid_until timestamptz, address inet)
         ORDER BY given.agent_id
    LOOP
        agent_id := o.agent_id; epoch := 0; acked_seq := 0; host_id := NULL;
        SELECT * INTO state FROM agent_state s WHERE s.agent_id = o.agent_id FOR UPDATE SKIP LOCKED;
        SELECT * INTO agent FROM agents a WHERE a.id = o.agent_id;
        IF agent.id IS NULL THEN
            verdict := 'deleted'; RETURN NEXT; CONTINUE;
        ELSIF agent.key <> decode(o.key, 'hex') THEN
            verdict := 'key_mismatch'; RETURN NEXT; CONTINUE;
        ELSIF agent.status <> 'active' THEN
            verdict := agent.status; RETURN NEXT; CONTINUE;
        ELSIF clock_timestamp() > o.valid_until OR state.connected_at > o.requested_at + interval '1 second' THEN
            verdict := 'late'; RETURN NEXT; CONTINUE;
        ELSIF state.agent_id IS NULL THEN
            verdict := 'locked'; RETURN NEXT; CONTINUE;
        END IF;
        came_back := (o.boot_id <> state.boot_id AND o.boot_id = ANY (state.earlier_lives))
                  OR (o.run_id <> state.run_id AND o.run_id = ANY (state.earlier_lives));
        -- The host has the identifiers that its active agent said last, so only others need a comparison.
        moved := agent.facts -> 'identifiers'::text IS DISTINCT FROM o.facts -> 'identifiers'::text
             AND coalesce(NOT same_machine(agent.host_id, o.facts -> 'identifiers'::text), false);
        liveness := CASE WHEN moved THEN agent_liveness(state, heard_within) END;
        IF (moved AND liveness = 'heard') OR o.boot_id = ANY (state.refused_lives) OR o.run_id = ANY (state.refused_lives) THEN
            PERFORM session_clone_seen(state, 'a copy of this identity was refused', o.address);
            verdict := 'identity_in_use'; RETURN NEXT; CONTINUE;
        ELSIF moved AND liveness = 'presumed' THEN
            PERFORM agent_contest(o.agent_id);
            verdict := 'presumed'; RETURN NEXT; CONTINUE;
        ELSIF came_back THEN
            PERFORM session_clone_seen(state, 'two copies of this identity are live: the second is refused from now on', o.address);
        END IF;
        UPDATE agent_state s
           SET epoch = s.epoch + 1, instance_id = instance, presence = 'online', cause = 'connected',
               presence_since = CASE s.presence WHEN 'online' THEN s.presence_since ELSE now() END,
               connected_at = now(), last_seen_at = now(), online_until = NULL, contested_at = NULL, heard_at = NULL,
               clock_skew_ms = coalesce(o.skew_ms, s.clock_skew_ms), boot_id = o.boot_id, run_id = o.run_id,
               earlier_lives = lives_add(s.earlier_lives, s.boot_id, s.run_id, o.boot_id, o.run_id),
               refused_lives = CASE WHEN came_back THEN lives_add(s.refused_lives, s.boot_id, s.run_id, o.boot_id, o.run_id)
                                    ELSE s.refused_lives END
         WHERE s.agent_id = o.agent_id
        RETURNING s.epoch, s.acked_seq INTO epoch, acked_seq;
        IF state.presence = 'offline' THEN
            INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason, address)
            VALUES (o.agent_id, 'presence', 'offline', 'online', 'connected', o.address);
        END IF;
        IF moved THEN
            PERFORM machine_changed(agent.id, agent.host_id, o.facts -> 'identifiers'::text);
            agent.facts := '{}'::jsonb; -- The host has lost its identifiers, so agent_says must write them.
        END IF;
        PERFORM agent_says(agent, o.version, o.capabilities, o.facts);
        verdict := 'open'; host_id := agent.host_id;
        RETURN NEXT;
    END LOOP;
END $$;

-- The same as before, and each of `details` may have an address.
CREATE OR REPLACE FUNCTION registrations_admit(keys bytea[], tokens bytea[], details jsonb)
    RETURNS TABLE (number bigint, agent_id uuid, host_id uuid, status text) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    most_locks CONSTANT integer := 1024;
    wanted record;
    spent  uuid[] := '{}';
BEGIN
    PERFORM FROM enrolment_tokens t WHERE t.hash = ANY (tokens) ORDER BY t.id FOR NO KEY UPDATE;
    FOR wanted IN
        SELECT given.*, t.id AS token_id, t.auto_approve, t.labels, t.max_uses - t.uses AS uses_left,
               row_number() OVER (PARTITION BY t.id ORDER BY given.position) AS use,
               sum(cardinality(given.locks)) OVER (ORDER BY given.position) AS locks_needed
          FROM ROWS FROM (unnest(keys), unnest(tokens), jsonb_to_recordset(details) AS (
                   locks bigint[], version text, capabilities text[], facts jsonb, address inet))
               WITH ORDINALITY AS given(key, token, locks, version, capabilities, facts, address, position)
          JOIN enrolment_tokens t ON t.hash = given.token
         WHERE enrolment_token_state(t) = 'active'
         ORDER BY given.position
    LOOP
        CONTINUE WHEN wanted.use > wanted.uses_left OR wanted.locks_needed > most_locks;
        CONTINUE WHEN NOT (SELECT bool_and(pg_try_advisory_xact_lock(lock)) FROM unnest(wanted.locks) AS locks(lock));
        CONTINUE WHEN EXISTS (SELECT FROM agents a WHERE a.key = wanted.key)
            OR EXISTS (SELECT FROM enrolment_token_uses u WHERE u.token_id = wanted.token_id AND u.key = wanted.key)
            OR EXISTS (SELECT FROM jsonb_each(wanted.facts -> 'identifiers') AS kinds(kind, list),
                                   jsonb_array_elements_text(kinds.list) AS identifiers(value),
                                   LATERAL (SELECT FROM host_identifiers i
                                             WHERE i.kind = kinds.kind AND i.value = identifiers.value LIMIT 1) AS known);
        INSERT INTO hosts (hostname, os, os_version, arch, kernel_version, mac_addresses, ip_addresses, boot_id,
                           cpu_count, memory_total_bytes, labels)
        SELECT facts.*, wanted.labels
          FROM jsonb_to_record(wanted.facts) AS facts(
                   hostname text, os text, os_version text, arch text, kernel_version text, mac_addresses text[],
                   ip_addresses text[], boot_id text, cpu_count bigint, memory_total_bytes bigint)
        RETURNING id INTO host_id;
        INSERT INTO host_identifiers (host_id, kind, value)
        SELECT registrations_admit.host_id, kinds.kind, identifiers.value
          FROM jsonb_each(wanted.facts -> 'identifiers') AS kinds(kind, list),
               jsonb_array_elements_text(kinds.list) AS identifiers(value);
        status := CASE WHEN wanted.auto_approve THEN 'active' ELSE 'pending' END;
        INSERT INTO agents (key, host_id, token_id, version, capabilities, facts, status, decided_by, decided_at, registered_from)
        VALUES (wanted.key, registrations_admit.host_id, wanted.token_id, wanted.version, wanted.capabilities, wanted.facts,
                registrations_admit.status, CASE WHEN wanted.auto_approve THEN 'token ' || wanted.token_id END,
                CASE WHEN wanted.auto_approve THEN now() END, wanted.address)
        RETURNING id INTO agent_id;
        INSERT INTO enrolment_token_uses (token_id, key) VALUES (wanted.token_id, wanted.key);
        spent := spent || wanted.token_id;
        number := wanted.position;
        RETURN NEXT;
    END LOOP;
    UPDATE enrolment_tokens t SET uses = t.uses + taken.count, last_used_at = now()
      FROM (SELECT token_id, count(*) FROM unnest(spent) AS spends(token_id) GROUP BY token_id) taken
     WHERE t.id = taken.token_id;
END $$;
