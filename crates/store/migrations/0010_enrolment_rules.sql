-- The rules of enrolment, where the first version broke them:
--
-- * a key spends a token once, whatever happens in between;
-- * a host takes facts, identifiers and labels from the agents that are admitted, and from no others;
-- * no active agent is on a retired host;
-- * an identity on another machine is a clone only while its own stream is being heard;
-- * the identifiers of two machines are never merged.

-- ---- Tokens ------------------------------------------------------------------

CREATE TABLE enrolment_token_uses (
    token_id uuid        NOT NULL REFERENCES enrolment_tokens ON DELETE CASCADE,
    key      bytea       NOT NULL CHECK (octet_length(key) = 32),
    used_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (token_id, key)
);

COMMENT ON TABLE enrolment_token_uses IS
    'Which keys have spent a use of which token. Rows outlive their agents, so that a key never spends a token twice.';
COMMENT ON COLUMN enrolment_token_uses.token_id IS 'The token.';
COMMENT ON COLUMN enrolment_token_uses.key IS 'SHA-256 of the public key (SPKI) that it admitted.';
COMMENT ON COLUMN enrolment_token_uses.used_at IS 'When.';

INSERT INTO enrolment_token_uses (token_id, key, used_at)
SELECT a.token_id, a.key, a.created_at FROM agents a WHERE a.token_id IS NOT NULL;

CREATE OR REPLACE FUNCTION add_enrolment_token(
        hash bytea, label text, actor text, max_uses integer DEFAULT 1,
        expires_at timestamptz DEFAULT now() + interval '7 days', labels jsonb DEFAULT '{}')
    RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    problem text := CASE
        WHEN hash IS NULL OR octet_length(hash) <> 32 THEN 'the hash is not the 32 bytes of a SHA-256'
        WHEN label IS NULL OR octet_length(label) > 255 THEN 'the label is missing or longer than 255 bytes'
        WHEN actor IS NULL THEN 'the actor is missing'
        WHEN max_uses IS NULL OR max_uses < 1 THEN 'max_uses is not a positive number'
        WHEN labels IS NULL OR jsonb_typeof(labels) <> 'object' THEN 'the labels are not an object'
    END;
    token uuid;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'SV400';
    END IF;
    INSERT INTO enrolment_tokens (hash, label, created_by, max_uses, expires_at, labels)
    VALUES (hash, label, left(actor, 255), max_uses, expires_at, labels)
    ON CONFLICT DO NOTHING RETURNING id INTO token;
    IF token IS NULL THEN
        RAISE EXCEPTION 'there is a token with this hash already' USING ERRCODE = 'SV409';
    END IF;
    RETURN token;
END $$;

COMMENT ON FUNCTION add_enrolment_token IS
    'Adds a token that another program made, by its SHA-256. Such a token never approves by itself. Refuses wrong arguments with SV400 and a known hash with SV409.';

-- ---- Machines and their facts ------------------------------------------------

ALTER TABLE agents ADD COLUMN machine_changed_at timestamptz;

COMMENT ON COLUMN agents.machine_changed_at IS
    'When this identity last came from another machine than before, while its own was offline: a machine that failed over, or a copy that came first.';
COMMENT ON COLUMN agent_events.kind IS
    'What kind of change: status, presence, clone, machine changed, host returned, or deleted.';

-- An agent's identity came from another machine. The host's identifiers are those of the old
-- machine, so they go: merged, both machines would count as the same one for ever. At most one
-- event a minute, however often an agent changes its facts.
CREATE FUNCTION machine_changed(agent uuid, host uuid, identifiers jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_events (agent_id, kind, reason)
    SELECT agent, 'machine changed',
           left(pg_catalog.format('%s %s instead of %s', known.kind,
                       (SELECT pg_catalog.string_agg(given.value, ', ') FROM jsonb_array_elements_text(identifiers -> known.kind) AS given(value)),
                       pg_catalog.string_agg(known.value, ', ')), 1000)
      FROM host_identifiers known
     WHERE known.host_id = host AND identifiers ? known.kind
       AND NOT EXISTS (SELECT FROM agents a
                        WHERE a.id = agent AND a.machine_changed_at > now() - interval '1 minute')
     GROUP BY known.kind
     ORDER BY pg_catalog.array_position(ARRAY['cloud', 'hardware', 'machine', 'network'], known.kind) LIMIT 1;
    UPDATE agents a SET machine_changed_at = now() WHERE a.id = agent;
    DELETE FROM host_identifiers known WHERE known.host_id = host;
END $$;

COMMENT ON FUNCTION machine_changed IS
    'Records that an agent came from another machine, and removes the identifiers of the old one from the host.';

CREATE FUNCTION host_takes_facts(host uuid, facts jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE hosts h
       SET (hostname, os, os_version, arch, kernel_version, mac_addresses, ip_addresses, boot_id, cpu_count,
            memory_total_bytes, facts_at)
         = (SELECT f.hostname, f.os, f.os_version, f.arch, f.kernel_version, f.mac_addresses, f.ip_addresses, f.boot_id,
                   f.cpu_count, f.memory_total_bytes, now()
              FROM pg_catalog.jsonb_populate_record(h, facts) f)
     WHERE h.id = host;
    INSERT INTO host_identifiers (host_id, kind, value)
    SELECT host, kinds.kind, identifiers.value
      FROM jsonb_each(coalesce(facts -> 'identifiers'::text, '{}'::jsonb)) AS kinds(kind, list),
           jsonb_array_elements_text(kinds.list) AS identifiers(value)
    ON CONFLICT DO NOTHING;
END $$;

COMMENT ON FUNCTION host_takes_facts IS 'Replaces the facts of a host and adds the identifiers among them.';

-- The facts at a registration may be of another machine than those of the registration that found the host.
CREATE FUNCTION agent_admitted(agent agents) RETURNS void LANGUAGE plpgsql AS $$
DECLARE was_retired boolean;
BEGIN
    SELECT h.retired_at IS NOT NULL INTO was_retired FROM hosts h WHERE h.id = agent.host_id FOR NO KEY UPDATE;
    IF same_machine(agent.host_id, agent.facts -> 'identifiers'::text) = false THEN
        PERFORM machine_changed(agent.id, agent.host_id, agent.facts -> 'identifiers'::text);
    END IF;
    PERFORM host_takes_facts(agent.host_id, agent.facts);
    UPDATE hosts h
       SET retired_at = NULL,
           labels = h.labels || coalesce((SELECT t.labels FROM enrolment_tokens t WHERE t.id = agent.token_id), '{}'::jsonb)
     WHERE h.id = agent.host_id;
    IF was_retired THEN
        INSERT INTO agent_events (agent_id, kind, reason)
        VALUES (agent.id, 'host returned', 'the host was retired and is in service again');
    END IF;
END $$;

COMMENT ON FUNCTION agent_admitted IS
    'What a host takes from a pending agent once it is admitted: facts, identifiers, the labels of its token. A retired host returns to service.';

-- The same as before, and:
-- An agent that becomes active gives its host what it has said while it was pending.
-- A registration that has found a host waits for a retirement that is under way, and starts over if
-- that commits (serialization_failure): it must not leave an active agent on a retired host.
--
-- Lock order: agents, agent_state, hosts. An append of samples locks agent_state before hosts too.
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
        INSERT INTO agent_events (agent_id, kind, to_status, actor, reason)
        VALUES (NEW.id, 'status', NEW.status, NEW.decided_by, coalesce(NEW.decision_reason, NEW.pending_reason));
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

-- The same as before, in the lock order of an approval: agents before hosts.
CREATE OR REPLACE FUNCTION retire_host(host uuid, actor text, reason text DEFAULT NULL)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer;
BEGIN
    PERFORM FROM agents a WHERE a.host_id = host AND a.status IN ('active', 'pending') ORDER BY a.id FOR UPDATE;
    UPDATE hosts h SET retired_at = coalesce(h.retired_at, now()) WHERE h.id = host;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    PERFORM decision_begins(actor, coalesce(reason, 'host retired'::text));
    WITH decided AS (
        UPDATE agents a SET status = CASE a.status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
         WHERE a.host_id = host AND a.status IN ('active', 'pending') RETURNING a.id)
    SELECT count(*) INTO touched FROM decided;
    RETURN touched;
END $$;

-- What an approval does from now on.
UPDATE hosts h SET retired_at = NULL
 WHERE h.retired_at IS NOT NULL AND EXISTS (SELECT FROM agents a WHERE a.host_id = h.id AND a.status = 'active');

-- The same as before, and a change of capabilities alone is written too.
CREATE OR REPLACE FUNCTION agent_says(agent agents, new_version text, new_capabilities jsonb, new_facts jsonb)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF agent.facts = new_facts AND agent.version = new_version AND to_jsonb(agent.capabilities) = new_capabilities THEN
        RETURN;
    END IF;
    UPDATE agents a SET version = new_version, facts = new_facts,
           capabilities = ARRAY (SELECT jsonb_array_elements_text(new_capabilities))
     WHERE a.id = agent.id;
    PERFORM host_takes_facts(agent.host_id, new_facts);
END $$;

-- ---- One identity on two machines --------------------------------------------

ALTER TABLE agent_state ADD COLUMN contested_at timestamptz, ADD COLUMN heard_at timestamptz;

COMMENT ON COLUMN agent_state.contested_at IS
    'Since when another machine presents this identity while it is presumed online. For two minutes the instance that holds the stream answers with heard_at; then a new contest may begin.';
COMMENT ON COLUMN agent_state.heard_at IS
    'When the agent''s stream last brought a message. Written only while the identity is contested.';

-- The proof that an identity is in use on two machines: its stream brings a message after the other
-- machine has come. A message from shortly before proves nothing, because a machine may fail over
-- within seconds. A stream that was opened within the interval is taken for live without that proof.
-- An instance without a valid lease proves nothing: nobody knows whether it still hears its agents.
CREATE FUNCTION agent_liveness(state agent_state, heard_within double precision) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN state.presence <> 'online' THEN 'offline'
        WHEN greatest(state.connected_at, CASE WHEN state.heard_at > state.contested_at THEN state.heard_at END)
                 > now() - make_interval(secs => heard_within)
             AND EXISTS (SELECT FROM ingest_instances i
                          WHERE i.id = state.instance_id AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now())
        THEN 'heard'
        ELSE 'presumed' END;
$$;

COMMENT ON FUNCTION agent_liveness IS
    'offline; heard: a live instance holds its stream, which within the given seconds was opened or brought a message since another machine contests the identity; presumed: it counts as online without that proof (grace, drain, lost instance, silence).';

-- A locked row is left alone, so that a registration, which holds the row in agents, cannot deadlock
-- with the opening of a session, which locks agent_state first. The client returns and contests again.
CREATE FUNCTION agent_contest(agent uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE agent_state s SET contested_at = now()
     WHERE s.agent_id = (SELECT free.agent_id FROM agent_state free WHERE free.agent_id = agent FOR UPDATE SKIP LOCKED)
       AND (s.contested_at IS NULL OR s.contested_at < now() - interval '2 minutes');
$$;

COMMENT ON FUNCTION agent_contest IS
    'Asks the instance that holds the agent''s stream when it hears the agent, because another machine presents its identity.';

-- As sessions_open_valid of migration 0009, with another rule for an identity that comes from another
-- machine. Its agent is a clone (identity_in_use) only if the stream of the original has been heard.
-- If the original is only presumed online, this may be the original itself after a failover: it is
-- asked to wait (presumed) until the original is heard, or offline.
CREATE FUNCTION sessions_open_heard(instance uuid, opens jsonb, heard_within double precision)
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
        -- The host has the identifiers that its active agent said last, so only others need a comparison.
        moved := agent.facts -> 'identifiers'::text IS DISTINCT FROM o.facts -> 'identifiers'::text
             AND coalesce(NOT same_machine(agent.host_id, o.facts -> 'identifiers'::text), false);
        liveness := CASE WHEN moved THEN agent_liveness(state, heard_within) END;
        IF (moved AND liveness = 'heard') OR o.boot_id = ANY (state.refused_lives) OR o.run_id = ANY (state.refused_lives) THEN
            PERFORM session_clone_seen(state, 'a copy of this identity was refused');
            verdict := 'identity_in_use'; RETURN NEXT; CONTINUE;
        ELSIF moved AND liveness = 'presumed' THEN
            PERFORM agent_contest(o.agent_id);
            verdict := 'presumed'; RETURN NEXT; CONTINUE;
        ELSIF came_back THEN
            PERFORM session_clone_seen(state, 'two copies of this identity are live: the second is refused from now on');
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
            INSERT INTO agent_events (agent_id, kind, from_status, to_status, reason)
            VALUES (o.agent_id, 'presence', 'offline', 'online', 'connected');
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

COMMENT ON FUNCTION sessions_open_heard IS
    'Opens sessions, many at once. Refuses an identity from another machine: as a clone if its own stream was heard within the given seconds (identity_in_use), for now if it is only presumed online (presumed).';

-- For instances of the previous version, which do not know the verdict presumed: late has the same
-- effect, a retry. The interval is the default one.
CREATE OR REPLACE FUNCTION sessions_open_valid(instance uuid, opens jsonb)
    RETURNS TABLE (agent_id uuid, verdict text, epoch bigint, acked_seq bigint, host_id uuid) LANGUAGE sql AS $$
    SELECT opened.agent_id, CASE opened.verdict WHEN 'presumed' THEN 'late' ELSE opened.verdict END,
           opened.epoch, opened.acked_seq, opened.host_id
      FROM sessions_open_heard(instance, opens, 35) opened;
$$;

REVOKE EXECUTE ON FUNCTION
    machine_changed, host_takes_facts, agent_admitted, agent_liveness, agent_contest, sessions_open_heard FROM PUBLIC;
