-- Sessions and presence: which agent has a live stream, on which instance, and what became of it; and the books of its samples.
--
-- A stored time that is in the future proves that the clock was set back since, and nothing else.

-- The columns that a report changes are side by side: the WAL of an update has only the bytes from the first to the last change. An update
-- stays in its page. A tenth of the rows changes within seconds, but nothing that plans depend on: so ANALYZE runs after ten changes a row.
CREATE TABLE agent_state (
    agent_id            uuid PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    agent_no            integer,
    host_no             integer,
    numbered_host       uuid,
    shape               uuid,
    moved_count         bigint      NOT NULL DEFAULT 0,
    rejected_count      bigint      NOT NULL DEFAULT 0,
    gap_count           bigint      NOT NULL DEFAULT 0,
    acked_seq           bigint      NOT NULL DEFAULT 0,
    stored_count        bigint      NOT NULL DEFAULT 0,
    newest_hour         integer,
    newest_hour_samples integer     NOT NULL DEFAULT 0,
    last_gap_at         timestamptz,
    last_dead_letter_at timestamptz,
    epoch               bigint      NOT NULL DEFAULT 0,
    instance_id         uuid,
    presence            text        NOT NULL DEFAULT 'offline' CHECK (presence IN ('online', 'offline', 'moved')),
    presence_since      timestamptz NOT NULL DEFAULT now(),
    cause               text        CHECK (cause IN ('connected', 'goodbye', 'lost', 'drained', 'updating', 'instance lost', 'replaced', 'refused', 'moved')),
    connected_at        timestamptz,
    last_seen_at        timestamptz,
    online_until        timestamptz,
    contested_at        timestamptz,
    heard_at            timestamptz,
    clock_skew_ms       bigint,
    clone_seen_at       timestamptz,
    boot_id             text        NOT NULL DEFAULT '',
    run_id              text        NOT NULL DEFAULT '',
    earlier_lives       text[]      NOT NULL DEFAULT '{}',
    refused_lives       text[]      NOT NULL DEFAULT '{}',
    CHECK (stored_count + rejected_count + gap_count + moved_count = acked_seq)
) WITH (fillfactor = 50, autovacuum_analyze_scale_factor = 10);
-- What an instance holds is read from the index alone, what a drain left to come back, and who has been offline for long.
CREATE INDEX agent_state_held ON agent_state (instance_id) INCLUDE (agent_id, epoch) WHERE instance_id IS NOT NULL;
CREATE INDEX agent_state_drained ON agent_state (online_until) WHERE online_until IS NOT NULL;
CREATE INDEX agent_state_offline ON agent_state (presence_since, agent_id) WHERE presence = 'offline';
CREATE INDEX agent_state_moved ON agent_state (agent_id) WHERE presence = 'moved';
COMMENT ON TABLE agent_state IS 'What changes often about an agent, apart from agents so that it never blocks a decision.';
COMMENT ON COLUMN agent_state.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_state.agent_no IS 'The number that stands for the agent in history; null before its first sample.';
COMMENT ON COLUMN agent_state.host_no IS 'The number that stands for its host in history; null before its first sample on this host.';
COMMENT ON COLUMN agent_state.numbered_host IS 'The host that host_no stands for. Null before the agent''s first sample on this host.';
COMMENT ON COLUMN agent_state.shape IS 'The shape of its newest samples, which is stored.';
COMMENT ON COLUMN agent_state.moved_count IS 'Numbers that another cell acknowledged, before or between the times that the agent was here.';
COMMENT ON COLUMN agent_state.rejected_count IS 'Samples rejected.';
COMMENT ON COLUMN agent_state.gap_count IS 'Samples that were never sent or were declared lost.';
COMMENT ON COLUMN agent_state.acked_seq IS 'Every sample up to this number is stored, rejected, recorded as a gap, or acknowledged by another cell.';
COMMENT ON COLUMN agent_state.stored_count IS 'Samples stored. With rejected_count, gap_count and moved_count it adds up to acked_seq.';
COMMENT ON COLUMN agent_state.newest_hour IS 'The newest hour of its samples, in hours since 1970 UTC; null before the first.';
COMMENT ON COLUMN agent_state.newest_hour_samples IS 'How many samples it has stored in that hour.';
COMMENT ON COLUMN agent_state.last_gap_at IS 'When a gap of it was last recorded.';
COMMENT ON COLUMN agent_state.last_dead_letter_at IS 'When the database last refused samples of it.';
COMMENT ON COLUMN agent_state.epoch IS 'Counts the agent''s streams: only the newest one may change its presence.';
COMMENT ON COLUMN agent_state.instance_id IS 'The instance that holds the newest stream; null when none does.';
COMMENT ON COLUMN agent_state.presence IS 'Whether it has a live stream: online or offline; moved: it lives in another cell, or is expected from one.';
COMMENT ON COLUMN agent_state.presence_since IS 'Since when.';
COMMENT ON COLUMN agent_state.cause IS 'Why presence is what it is: connected, goodbye, lost, drained, updating (online: it stopped for an update, and has until online_until to come back), instance lost, replaced, refused (its agent is no longer active), or moved (it said so when it left for another cell).';
COMMENT ON COLUMN agent_state.connected_at IS 'When the newest stream was opened.';
COMMENT ON COLUMN agent_state.last_seen_at IS 'When the agent was last heard; while it is online, when it connected.';
COMMENT ON COLUMN agent_state.online_until IS 'After a drain, or while an agent updates itself: until when the agent counts as online without a stream, for it to come back.';
COMMENT ON COLUMN agent_state.contested_at IS 'Since when another machine presents this identity while it is presumed online. For two minutes the instance that holds the stream answers with heard_at; then a new contest may begin.';
COMMENT ON COLUMN agent_state.heard_at IS 'When the agent''s stream last brought a message. Written only while the identity is contested.';
COMMENT ON COLUMN agent_state.clock_skew_ms IS 'The agent''s clock minus the database''s, when it last connected.';
COMMENT ON COLUMN agent_state.clone_seen_at IS 'When a copy of this identity was last refused.';
COMMENT ON COLUMN agent_state.boot_id IS 'Boot of the machine that the newest stream came from.';
COMMENT ON COLUMN agent_state.run_id IS 'Start of the agent program that the newest stream came from.';
COMMENT ON COLUMN agent_state.earlier_lives IS 'Boots and runs that newer ones took over from: one that comes back proves two copies.';
COMMENT ON COLUMN agent_state.refused_lives IS 'Boots and runs that were proven to be copies.';

CREATE FUNCTION happened_within(at timestamptz, seconds double precision) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(at, '-infinity') > now() - make_interval(secs => seconds) AND at <= clock_timestamp();
$$;
COMMENT ON FUNCTION happened_within IS 'Whether something happened within the last seconds. A time in the future was written before the clock stepped back: false. Null: false.';

-- ---- One identity on two machines ----------------------------------------------------------------
-- The proof that an identity is in use on two machines: its stream brings a message after the other machine has come. A message from
-- shortly before proves nothing, because a machine may fail over within seconds. A stream that was opened within the interval is taken
-- for live without that proof. An instance without a valid lease proves nothing: nobody knows whether it still hears its agents.
CREATE FUNCTION agent_liveness(state agent_state, heard_within double precision) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN state.presence <> 'online' THEN 'offline'
        WHEN (happened_within(state.connected_at, heard_within)
              OR (state.heard_at > state.contested_at AND happened_within(state.heard_at, heard_within)))
             AND EXISTS (SELECT FROM ingest_instances i
                          WHERE i.id = state.instance_id AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now())
        THEN 'heard'
        ELSE 'presumed' END;
$$;
COMMENT ON FUNCTION agent_liveness IS 'offline; heard: a live instance holds its stream, which within the given seconds was opened or brought a message since another machine contests the identity; presumed: it counts as online without that proof (grace, drain, lost instance, silence).';

-- A locked row is left alone, so that a registration, which holds the row in agents, cannot deadlock with the opening of a session, which
-- locks agent_state first. The client returns and contests again.
CREATE FUNCTION agent_contest(agent uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE agent_state s SET contested_at = now()
     WHERE s.agent_id = (SELECT free.agent_id FROM agent_state free WHERE free.agent_id = agent FOR UPDATE SKIP LOCKED)
       AND NOT happened_within(s.contested_at, 120);
$$;
COMMENT ON FUNCTION agent_contest IS 'Asks the instance that holds the agent''s stream when it hears the agent, because another machine presents its identity.';

CREATE FUNCTION lives_add(lives text[], boot text, run text, boot_now text, run_now text)
    RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(life ORDER BY number), '{}')
      FROM (SELECT life, max(number) AS number
              FROM unnest(lives || ARRAY[boot, run]) WITH ORDINALITY AS given(life, number)
             WHERE life NOT IN ('', boot_now, run_now)
             GROUP BY life ORDER BY 2 DESC LIMIT 32) newest;
$$;
COMMENT ON FUNCTION lives_add IS 'The last few lives before the present one, which is not among them.';

CREATE FUNCTION session_clone_seen(state agent_state, what text, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF happened_within(state.clone_seen_at, 600) THEN
        RETURN;
    END IF;
    UPDATE agent_state SET clone_seen_at = now() WHERE agent_id = state.agent_id;
    INSERT INTO agent_events (agent_id, kind, reason, address) VALUES (state.agent_id, 'clone', what, seen_from);
END $$;
COMMENT ON FUNCTION session_clone_seen IS 'Records that a copy of an identity was seen: at most one event in ten minutes, however often the copy connects.';

-- ---- Opening sessions ----------------------------------------------------------------------------
-- A request may reach the server long after its client gave up: a frozen server, a slow network, a queue. It must not displace the stream
-- that the agent has opened elsewhere meanwhile. So it carries the time of its Hello and the end of its validity, on the database's clock,
-- and is void after a newer session was opened or its validity has passed. Instances know that clock to within milliseconds; the second of
-- tolerance keeps an agent that reconnects at once from being refused. No client gives up and connects elsewhere within a second.
--
-- Times tell which came first only while the clock runs steadily. A session of the future was opened before the clock stepped back, and is
-- no newer session: otherwise no agent that had connected shortly before the step could connect again. A request of the future was dated
-- before the clock stepped back, and would stay valid for as long as the step: it is void. Instances read the clock every few seconds.
--
-- A row that another transaction has locked is skipped: its request gets the verdict `locked`, and all others of the batch are opened.

-- An identity that comes from another machine is a clone only if the stream of the original has been heard. If the original is only
-- presumed online, this may be the original itself after a failover: it is asked to wait until the original is heard, or offline.
CREATE FUNCTION session_judge(
    state agent_state, moved boolean, came_back boolean, refused boolean, heard_within double precision, seen_from inet)
    RETURNS text LANGUAGE plpgsql AS $$
DECLARE liveness text := CASE WHEN moved THEN agent_liveness(state, heard_within) END;
BEGIN
    IF liveness = 'heard' OR refused THEN
        PERFORM session_clone_seen(state, 'a copy of this identity was refused', seen_from);
        RETURN 'identity_in_use';
    ELSIF liveness = 'presumed' THEN
        PERFORM agent_contest(state.agent_id);
        RETURN 'presumed';
    ELSIF came_back THEN
        PERFORM session_clone_seen(state, 'two copies of this identity are live: the second is refused from now on', seen_from);
    END IF;
    RETURN 'open';
END $$;
COMMENT ON FUNCTION session_judge IS 'Whether a machine that may be a copy gets its session: open, identity_in_use (a clone) or presumed (ask again).';

CREATE FUNCTION agent_connected(
    agent agents, presence text, moved boolean, new_version text, new_capabilities jsonb, new_facts jsonb, seen_from inet)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF presence <> 'online' THEN
        INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason, address)
        VALUES (agent.id, 'presence', presence, 'online', 'connected', seen_from);
    END IF;
    IF presence = 'moved' THEN
        UPDATE agent_moves m SET moved_at = NULL WHERE m.agent_id = agent.id;
    END IF;
    IF moved THEN -- The host loses its identifiers, so its facts are written in any case.
        PERFORM machine_changed(agent.id, agent.host_id, new_facts -> 'identifiers'::text);
    ELSIF agent.facts = new_facts AND agent.version = new_version AND to_jsonb(agent.capabilities) = new_capabilities THEN
        RETURN;
    END IF;
    UPDATE agents a SET version = new_version, facts = new_facts,
           capabilities = ARRAY (SELECT jsonb_array_elements_text(new_capabilities))
     WHERE a.id = agent.id;
    PERFORM host_takes_facts(agent.host_id, new_facts);
END $$;
COMMENT ON FUNCTION agent_connected IS 'Records that an agent is online, and what it says of itself and its machine; written only where it is new.';

-- `opens` is an array of {agent_id, key, boot_id, run_id, version, capabilities, facts, skew_ms, requested_at, valid_until, address,
-- elsewhere}; one agent is in it once. `elsewhere` is the number up to which another cell has acknowledged, as the agent says after a move:
-- the watermark continues there. An agent that lies skips numbers of its own, as it can at any time. An instance that was fenced, and does not know it yet, opens nothing: nobody would look after its streams.
CREATE FUNCTION sessions_open_heard(instance uuid, opens jsonb, heard_within double precision)
    RETURNS TABLE (agent_id uuid, verdict text, epoch bigint, acked_seq bigint, host_id uuid, change_key boolean)
    LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    o         record;
    key_state text;
    agent     agents;
    state     agent_state;
    moved     boolean;
    came_back boolean;
    refused   boolean;
BEGIN
    PERFORM FROM ingest_instances i WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR o IN
        SELECT * FROM jsonb_to_recordset(opens) AS given(
            agent_id uuid, key text, boot_id text, run_id text, version text, capabilities jsonb, facts jsonb, skew_ms bigint,
            requested_at timestamptz, valid_until timestamptz, address inet, elsewhere bigint)
         ORDER BY given.agent_id
    LOOP
        agent_id := o.agent_id; epoch := 0; acked_seq := 0; host_id := NULL; change_key := false;
        SELECT * INTO state FROM agent_state s WHERE s.agent_id = o.agent_id FOR UPDATE SKIP LOCKED;
        SELECT * INTO agent FROM agents a WHERE a.id = o.agent_id;
        -- One statement, hence one snapshot: a promotion that commits between two would make its key look like that of a stranger.
        SELECT CASE WHEN a.key = decode(o.key, 'hex') THEN 'present' ELSE agent_key_state(a.id, decode(o.key, 'hex')) END
          INTO key_state FROM agents a WHERE a.id = o.agent_id;
        verdict := CASE
            WHEN agent.id IS NULL THEN 'deleted'
            WHEN key_state IS NULL THEN 'key_mismatch'
            WHEN key_state = 'retired' THEN 'retired_key'
            WHEN agent.status <> 'active' THEN agent.status
            WHEN clock_timestamp() NOT BETWEEN o.requested_at AND o.valid_until
              OR (state.connected_at > o.requested_at + interval '1 second' AND state.connected_at <= clock_timestamp()) THEN 'late'
            WHEN state.agent_id IS NULL THEN 'locked'
            ELSE 'open' END;
        IF verdict = 'open' THEN
            -- The host has the identifiers that its active agent said last, so only others need a comparison.
            moved := agent.facts -> 'identifiers'::text IS DISTINCT FROM o.facts -> 'identifiers'::text
                 AND coalesce(NOT same_machine(agent.host_id, o.facts -> 'identifiers'::text), false);
            came_back := (o.boot_id <> state.boot_id AND o.boot_id = ANY (state.earlier_lives))
                      OR (o.run_id <> state.run_id AND o.run_id = ANY (state.earlier_lives));
            refused := o.boot_id = ANY (state.refused_lives) OR o.run_id = ANY (state.refused_lives);
            IF moved OR came_back OR refused THEN
                verdict := session_judge(state, moved, came_back, refused, heard_within, o.address);
            END IF;
        END IF;
        IF verdict = 'open' THEN
            UPDATE agent_state s
               SET epoch = s.epoch + 1, instance_id = instance, presence = 'online', cause = 'connected',
                   presence_since = CASE s.presence WHEN 'online' THEN s.presence_since ELSE now() END,
                   connected_at = now(), last_seen_at = now(), online_until = NULL, contested_at = NULL, heard_at = NULL,
                   clock_skew_ms = coalesce(o.skew_ms, s.clock_skew_ms), boot_id = o.boot_id, run_id = o.run_id,
                   earlier_lives = lives_add(s.earlier_lives, s.boot_id, s.run_id, o.boot_id, o.run_id),
                   refused_lives = CASE WHEN NOT came_back THEN s.refused_lives
                                        ELSE lives_add(s.refused_lives, s.boot_id, s.run_id, o.boot_id, o.run_id) END,
                   moved_count = s.moved_count + greatest(o.elsewhere - s.acked_seq, 0), acked_seq = greatest(s.acked_seq, o.elsewhere)
             WHERE s.agent_id = o.agent_id RETURNING s.epoch, s.acked_seq INTO epoch, acked_seq;
            IF key_state = 'next' THEN -- Its first use retires the present one.
                PERFORM agent_key_promote(agent, decode(o.key, 'hex'), o.address);
            END IF;
            PERFORM agent_connected(agent, state.presence, moved, o.version, o.capabilities, o.facts, o.address);
            host_id := agent.host_id;
            change_key := key_state = 'present' AND agent.key_change_at IS NOT NULL;
        ELSIF verdict = 'retired_key' THEN
            PERFORM agent_keys_used(ARRAY[decode(o.key, 'hex')], ARRAY[o.address]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION sessions_open_heard IS 'Opens sessions, many at once: authenticates each agent against its keys and status, promotes a next key, refuses copies, and claims the next epoch for the rest.';

-- ---- Closing and claiming them -------------------------------------------------------------------
-- Only the newest stream of an agent changes anything. An agent that was drained, or that restarts for an update, stays online until it
-- had time to return. One that says that it has moved without having been told to just said Goodbye: else it could hide from all lists of
-- hosts that are offline.
CREATE FUNCTION sessions_close(agents uuid[], epochs bigint[], causes text[], back_in double precision[])
    RETURNS integer LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE touched integer;
BEGIN
    PERFORM FROM agent_state s WHERE s.agent_id = ANY (agents) ORDER BY s.agent_id FOR UPDATE;
    WITH closed AS (
        UPDATE agent_state s
           SET presence = CASE WHEN c.cause IN ('drained', 'updating') THEN 'online' WHEN c.cause = 'moved' THEN 'moved' ELSE 'offline' END,
               presence_since = CASE WHEN c.cause IN ('drained', 'updating') THEN s.presence_since ELSE now() END,
               cause = c.cause, instance_id = NULL, last_seen_at = now(),
               online_until = CASE WHEN c.cause IN ('drained', 'updating') THEN now() + make_interval(secs => c.back_in) END
          FROM (SELECT given.agent_id, given.epoch, given.back_in,
                       CASE WHEN given.cause = 'moved' AND NOT EXISTS (SELECT FROM agent_moves m WHERE m.agent_id = given.agent_id)
                            THEN 'goodbye' ELSE given.cause END AS cause
                  FROM unnest(agents, epochs, causes, back_in) AS given(agent_id, epoch, cause, back_in)) c
         WHERE s.agent_id = c.agent_id AND s.epoch = c.epoch AND s.presence = 'online'
        RETURNING s.agent_id, s.presence, s.cause),
    gone AS (
        UPDATE agent_moves m SET moved_at = now(), problem = '' FROM closed WHERE closed.presence = 'moved' AND m.agent_id = closed.agent_id)
    INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
    SELECT closed.agent_id, 'presence', 'online', closed.presence,
           CASE closed.presence WHEN 'moved' THEN (SELECT 'to cell ' || m.cell FROM agent_moves m WHERE m.agent_id = closed.agent_id)
                                ELSE closed.cause END
      FROM closed WHERE closed.presence <> 'online';
    GET DIAGNOSTICS touched = ROW_COUNT;
    RETURN touched;
END $$;
COMMENT ON FUNCTION sessions_close IS 'Closes sessions, many at once. Returns how many agents went offline.';

-- An epoch belongs to one stream. Only a database that has forgotten an open (a failover to a standby that was behind) gives an epoch
-- out twice. Then the live instance that is stored has the newer stream.
CREATE FUNCTION held_elsewhere(stored uuid, instance uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM ingest_instances i
                    WHERE i.id = stored AND i.id <> instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now());
$$;
COMMENT ON FUNCTION held_elsewhere IS 'Whether a session is stored for another instance than this one, which is live.';

-- An instance that was fenced claims nothing, because no sweep would end it. An agent whose row is locked delays no other; it is claimed
-- at the next comparison.
CREATE FUNCTION sessions_reclaim(instance uuid, agents uuid[], epochs bigint[])
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
        SELECT held.agent_id, 'presence', held.presence, 'online', 'connected' FROM held WHERE held.presence <> 'online')
    SELECT back.agent_id FROM back;
END $$;
COMMENT ON FUNCTION sessions_reclaim IS 'Stores sessions that an instance holds for it again: those whose epoch is the newest, whose agent is active, and that no other live instance has. Returns their agents.';

CREATE FUNCTION sessions_digest(instance uuid, OUT sessions bigint, OUT digest bigint, OUT doubtful bigint)
    STABLE LANGUAGE plpgsql AS $$
BEGIN
    SELECT count(*), coalesce(bit_xor(uuid_hash_extended(s.agent_id, s.epoch)), 0),
           count(*) FILTER (WHERE a.id IS NOT NULL OR happened_within(s.contested_at, 120))
      INTO sessions, digest, doubtful
      FROM agent_state s LEFT JOIN agents a ON a.id = s.agent_id AND a.status <> 'active'
     WHERE s.instance_id = instance;
END $$;
COMMENT ON FUNCTION sessions_digest IS 'The sessions of an instance: how many, the XOR of their hashes, and how many need a look. A function, so that each connection plans it once.';

-- ---- Ending those that nobody holds --------------------------------------------------------------
-- The settings of these functions are optimizer fences. The values of instance_id and online_until change for the whole fleet at once, so
-- statistics about them are wrong exactly when it matters: the planner would read the whole table because it expects to find a row soon,
-- or a few rows because it expects none. Without sequential scans the partial indexes remain, which are right in every case. That setting
-- makes the costs of plans so large that PostgreSQL sees no difference between them and plans anew at every call, hence the generic plan.

CREATE FUNCTION drain_longest() RETURNS interval IMMUTABLE LANGUAGE sql AS $$ SELECT interval '15 minutes' $$;
COMMENT ON FUNCTION drain_longest IS 'No drained agent, and none that updates itself, gets longer to come back.';

CREATE FUNCTION sweep_postpone(grace double precision) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE sweep_pause SET since = clock_timestamp(), until = clock_timestamp() + make_interval(secs => grace)
     WHERE EXISTS (SELECT FROM agent_state s WHERE s.online_until IS NOT NULL)
        OR EXISTS (SELECT FROM agent_state s WHERE s.instance_id IS NOT NULL);
END $$;
COMMENT ON FUNCTION sweep_postpone IS 'Lets nothing be swept for so many seconds, if any agent counts as online.';

-- Nearly every sweep finds nothing, but costs a transaction that is written to disk. The renewal of a lease asks this instead.
CREATE FUNCTION sweep_is_due(grace double precision) RETURNS boolean
    LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE gone uuid[] := instances_gone(grace);
BEGIN
    RETURN NOT sweep_is_paused() AND (
        EXISTS (SELECT FROM agent_state s WHERE s.online_until < now())
        OR EXISTS (SELECT FROM agent_state s WHERE s.online_until > now() + drain_longest())
        OR EXISTS (SELECT FROM instances_lapsed(grace))
        OR EXISTS (SELECT FROM agent_state s WHERE s.instance_id = ANY (gone))
        OR EXISTS (SELECT FROM ingest_instances i WHERE i.id = ANY (gone) AND i.expires_at < now() - interval '1 hour')
        OR EXISTS (SELECT FROM ingest_instances i
                    WHERE i.expires_at < now() - interval '30 days' AND (i.fenced OR i.stopped_at IS NOT NULL)));
END $$;
COMMENT ON FUNCTION sweep_is_due IS 'Whether leases_fence or sessions_sweep_batch would find something.';

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
COMMENT ON FUNCTION sessions_end IS 'Ends the sessions of agents whose rows the caller has locked. Returns how many.';

-- Any number may run at once: each takes rows that no other one has locked. A row that is locked is being opened or closed. Nothing waits
-- here for a row of an agent, so the order of the locks does not matter. A drained agent whose time lies further ahead than any drain
-- allows gets the longest one from now on: the clock was set back.
CREATE FUNCTION sessions_sweep_batch(
    sweeper uuid, grace double precision, batch integer, OUT lost integer, OUT undrained integer)
    LANGUAGE plpgsql SET lock_timeout = '2s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE gone uuid[];
BEGIN
    lost := 0; undrained := 0;
    IF NOT lease_is_held(sweeper) OR sweep_is_paused() THEN
        RETURN;
    END IF;
    gone := instances_gone(grace);
    lost := sessions_end(ARRAY (
        SELECT s.agent_id FROM agent_state s WHERE s.instance_id = ANY (gone) LIMIT batch FOR UPDATE SKIP LOCKED), 'instance lost');
    undrained := sessions_end(ARRAY (
        SELECT s.agent_id FROM agent_state s WHERE s.online_until < now() LIMIT batch FOR UPDATE SKIP LOCKED), 'lost');
    UPDATE agent_state s SET online_until = now() + drain_longest()
     WHERE s.agent_id = ANY (ARRAY (
           SELECT ahead.agent_id FROM agent_state ahead
            WHERE ahead.online_until > now() + drain_longest() LIMIT batch FOR UPDATE SKIP LOCKED));
    UPDATE ingest_instances i SET swept = true
     WHERE i.id = ANY (gone) AND i.expires_at < now() - interval '1 hour'
       AND NOT EXISTS (SELECT FROM agent_state s WHERE s.instance_id = i.id);
END $$;
COMMENT ON FUNCTION sessions_sweep_batch IS 'Ends sessions of fenced and stopped instances, and of agents that did not return from a drain: at most one batch of each. The caller must hold a lease.';

REVOKE EXECUTE ON FUNCTION
    happened_within, agent_liveness, agent_contest, lives_add, session_clone_seen, session_judge, agent_connected,
    sessions_open_heard, sessions_close, held_elsewhere, sessions_reclaim, sessions_digest, drain_longest,
    sweep_postpone, sweep_is_due, sessions_end, sessions_sweep_batch FROM PUBLIC;
