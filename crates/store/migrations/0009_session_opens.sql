-- Opening sessions so that a late or blocked request harms nobody else.
--
-- A request may reach the server long after its client gave up: a frozen server, a slow network, a
-- queue. Such a request must not displace the stream that the agent has opened elsewhere meanwhile.
-- It therefore carries the time of its Hello and the end of its validity, both on the database's
-- clock, and is void after a newer session was opened or its validity has passed. Instances know that
-- clock to within milliseconds; the second of tolerance keeps an agent that reconnects at once from
-- being refused. No client gives up and connects elsewhere within a second of its Hello.
--
-- A row that another transaction has locked is skipped instead of waited for: the request gets the
-- verdict 'locked', and all others of the batch are opened.
--
-- The function with two arguments stays for instances of the previous version.

CREATE FUNCTION sessions_open_valid(instance uuid, opens jsonb)
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
            agent_id uuid, key text, boot_id text, run_id text, version text, capabilities jsonb, facts jsonb, skew_ms bigint,
            requested_at timestamptz, valid_until timestamptz)
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

COMMENT ON FUNCTION sessions_open_valid IS
    'Opens sessions, many at once. A request that is older than the agent''s newest session or past its validity is void (late); an agent whose row is locked is skipped (locked).';

REVOKE EXECUTE ON FUNCTION sessions_open_valid(uuid, jsonb) FROM PUBLIC;
