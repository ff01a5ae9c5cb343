-- A clock that steps back, and sessions that are held by an instance but not stored for it.
--
-- A stored time that is in the future proves that the clock was set back since, and nothing else. Comparisons such as
-- `connected_at > now() - interval` took it for a moment ago until the clock had caught up: for an hour after a step of an hour.

CREATE FUNCTION happened_within(at timestamptz, seconds double precision) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(at, '-infinity') > now() - make_interval(secs => seconds) AND at <= clock_timestamp();
$$;

COMMENT ON FUNCTION happened_within IS
    'Whether something happened within the last seconds. A time in the future was written before the clock stepped back: false. Null: false.';

-- The same as before, but for times in the future.
CREATE OR REPLACE FUNCTION agent_liveness(state agent_state, heard_within double precision) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN state.presence <> 'online' THEN 'offline'
        WHEN (happened_within(state.connected_at, heard_within)
              OR (state.heard_at > state.contested_at AND happened_within(state.heard_at, heard_within)))
             AND EXISTS (SELECT FROM ingest_instances i
                          WHERE i.id = state.instance_id AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now())
        THEN 'heard'
        ELSE 'presumed' END;
$$;

-- The same as before, but for times in the future: a new contest may begin then.
CREATE OR REPLACE FUNCTION agent_contest(agent uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE agent_state s SET contested_at = now()
     WHERE s.agent_id = (SELECT free.agent_id FROM agent_state free WHERE free.agent_id = agent FOR UPDATE SKIP LOCKED)
       AND NOT happened_within(s.contested_at, 120);
$$;

-- The same as before, but for times in the future.
CREATE OR REPLACE FUNCTION session_clone_seen(state agent_state, what text, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF happened_within(state.clone_seen_at, 600) THEN
        RETURN;
    END IF;
    UPDATE agent_state SET clone_seen_at = now() WHERE agent_id = state.agent_id;
    INSERT INTO agent_events (agent_id, kind, reason, address) VALUES (state.agent_id, 'clone', what, seen_from);
END $$;

-- The same as before, but for times in the future: otherwise every comparison would read all sessions until the clock has caught up.
CREATE OR REPLACE FUNCTION sessions_digest(instance uuid, OUT sessions bigint, OUT digest bigint, OUT doubtful bigint)
    STABLE LANGUAGE plpgsql AS $$
BEGIN
    SELECT count(*), coalesce(bit_xor(uuid_hash_extended(s.agent_id, s.epoch)), 0),
           count(*) FILTER (WHERE a.id IS NOT NULL OR happened_within(s.contested_at, 120))
      INTO sessions, digest, doubtful
      FROM agent_state s LEFT JOIN agents a ON a.id = s.agent_id AND a.status <> 'active'
     WHERE s.instance_id = instance;
END $$;

-- The same as before, but for steps of the clock. The request of a client that has gone must not displace a newer session, so a request
-- is void if a session was opened after it. Times tell which came first only while the clock runs steadily:
-- * A session of the future was opened before the clock stepped back. It is no newer session. Otherwise no agent that had connected
--   shortly before the step could connect again until the clock has caught up.
-- * A request of the future was dated before the clock stepped back, and would stay valid for as long as the step. It is void. Instances
--   read the clock every few seconds, so their requests are void for no longer.
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
        ELSIF clock_timestamp() NOT BETWEEN o.requested_at AND o.valid_until
           OR (state.connected_at > o.requested_at + interval '1 second' AND state.connected_at <= clock_timestamp()) THEN
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

-- An epoch belongs to one stream. Only a database that has forgotten an open (a failover to a standby that was behind) gives an epoch
-- out twice. Then the live instance that is stored has the newer stream.
CREATE FUNCTION held_elsewhere(stored uuid, instance uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM ingest_instances i
                    WHERE i.id = stored AND i.id <> instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now());
$$;

COMMENT ON FUNCTION held_elsewhere IS 'Whether a session is stored for another instance than this one, which is live.';

-- The same as before, with the rules by which sessions are opened: an instance that was fenced claims nothing, because no sweep would
-- end it, and an agent whose row is locked delays no other; it is claimed at the next comparison.
CREATE OR REPLACE FUNCTION sessions_reclaim(instance uuid, agents uuid[], epochs bigint[])
    RETURNS SETOF uuid LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    PERFORM FROM ingest_instances i WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH held AS (
        SELECT mine.agent_id, mine.presence FROM unnest(agents, epochs) AS c(agent_id, epoch)
         CROSS JOIN LATERAL (
               SELECT s.agent_id, s.presence FROM agent_state s
                WHERE s.agent_id = c.agent_id AND s.epoch = c.epoch AND NOT held_elsewhere(s.instance_id, instance)
                  AND (SELECT a.status FROM agents a WHERE a.id = s.agent_id) = 'active'
                  FOR UPDATE SKIP LOCKED) mine),
    back AS (
        UPDATE agent_state s SET instance_id = instance, presence = 'online', cause = 'connected', online_until = NULL,
               presence_since = CASE s.presence WHEN 'online' THEN s.presence_since ELSE now() END
         WHERE s.agent_id = ANY (ARRAY (SELECT held.agent_id FROM held)) RETURNING s.agent_id),
    recorded AS (
        INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
        SELECT held.agent_id, 'presence', 'offline', 'online', 'connected' FROM held WHERE held.presence = 'offline')
    SELECT back.agent_id FROM back;
END $$;

COMMENT ON FUNCTION sessions_reclaim IS
    'Stores sessions that an instance holds for it again: those whose epoch is the newest, whose agent is active, and that no other live instance has. Returns their agents.';

REVOKE EXECUTE ON FUNCTION happened_within, held_elsewhere FROM PUBLIC;
