-- Enrolment: tokens, hosts, agents, and the record of every change of an agent.
--
-- The rules of an agent's life stand here, in a trigger, so that they hold
-- whoever writes: the service, the command line, or the web application.

CREATE TABLE enrolment_tokens (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    hash            bytea       NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    label           text        NOT NULL DEFAULT '' CHECK (octet_length(label) <= 255),
    auto_approve    boolean     NOT NULL DEFAULT false,
    allow_reinstall boolean     NOT NULL DEFAULT false,
    max_uses        integer     NOT NULL DEFAULT 1 CHECK (max_uses > 0),
    uses            integer     NOT NULL DEFAULT 0,
    labels          jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text        NOT NULL DEFAULT session_user,
    expires_at      timestamptz,
    revoked_at      timestamptz,
    revoked_by      text,
    last_used_at    timestamptz,
    CHECK (uses BETWEEN 0 AND max_uses)
);

COMMENT ON TABLE enrolment_tokens IS
    'What admits new agents. Active, expired, exhausted and revoked are derived from the columns: see the view enrolment_token_states.';
COMMENT ON COLUMN enrolment_tokens.id IS 'The token''s public name.';
COMMENT ON COLUMN enrolment_tokens.hash IS 'SHA-256 of the token; the token itself is stored nowhere.';
COMMENT ON COLUMN enrolment_tokens.label IS 'What people call it.';
COMMENT ON COLUMN enrolment_tokens.auto_approve IS 'Whether agents that come by it are active at once.';
COMMENT ON COLUMN enrolment_tokens.allow_reinstall IS 'Whether, with auto_approve, it may replace a machine''s agent that has been offline for a while.';
COMMENT ON COLUMN enrolment_tokens.max_uses IS 'How many keys it admits.';
COMMENT ON COLUMN enrolment_tokens.uses IS 'How many keys it has admitted.';
COMMENT ON COLUMN enrolment_tokens.labels IS 'Key/value labels that its hosts are given.';
COMMENT ON COLUMN enrolment_tokens.created_at IS 'When it was made.';
COMMENT ON COLUMN enrolment_tokens.created_by IS 'Who made it.';
COMMENT ON COLUMN enrolment_tokens.expires_at IS 'When it ceases to admit; null: never.';
COMMENT ON COLUMN enrolment_tokens.revoked_at IS 'When it was revoked.';
COMMENT ON COLUMN enrolment_tokens.revoked_by IS 'Who revoked it.';
COMMENT ON COLUMN enrolment_tokens.last_used_at IS 'When it last admitted a key.';

CREATE VIEW enrolment_token_states AS
    SELECT id, label, auto_approve, allow_reinstall, max_uses, uses, labels, created_at, created_by,
           expires_at, revoked_at, revoked_by, last_used_at,
           CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
                WHEN expires_at <= now() THEN 'expired'
                WHEN uses >= max_uses THEN 'exhausted'
                ELSE 'active' END AS state
      FROM enrolment_tokens;

COMMENT ON VIEW enrolment_token_states IS 'Tokens without their hashes, with the state that follows from their columns.';
COMMENT ON COLUMN enrolment_token_states.id IS 'The token''s public name.';
COMMENT ON COLUMN enrolment_token_states.label IS 'What people call it.';
COMMENT ON COLUMN enrolment_token_states.auto_approve IS 'Whether agents that come by it are active at once.';
COMMENT ON COLUMN enrolment_token_states.allow_reinstall IS 'Whether, with auto_approve, it may replace a machine''s agent that has been offline for a while.';
COMMENT ON COLUMN enrolment_token_states.max_uses IS 'How many keys it admits.';
COMMENT ON COLUMN enrolment_token_states.uses IS 'How many keys it has admitted.';
COMMENT ON COLUMN enrolment_token_states.labels IS 'Key/value labels that its hosts are given.';
COMMENT ON COLUMN enrolment_token_states.created_at IS 'When it was made.';
COMMENT ON COLUMN enrolment_token_states.created_by IS 'Who made it.';
COMMENT ON COLUMN enrolment_token_states.expires_at IS 'When it ceases to admit; null: never.';
COMMENT ON COLUMN enrolment_token_states.revoked_at IS 'When it was revoked.';
COMMENT ON COLUMN enrolment_token_states.revoked_by IS 'Who revoked it.';
COMMENT ON COLUMN enrolment_token_states.last_used_at IS 'When it last admitted a key.';
COMMENT ON COLUMN enrolment_token_states.state IS 'active, expired, exhausted or revoked.';

CREATE TABLE hosts (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    hostname           text        NOT NULL,
    os                 text        NOT NULL DEFAULT '',
    os_version         text        NOT NULL DEFAULT '',
    arch               text        NOT NULL DEFAULT '',
    kernel_version     text        NOT NULL DEFAULT '',
    mac_addresses      text[]      NOT NULL DEFAULT '{}',
    ip_addresses       text[]      NOT NULL DEFAULT '{}',
    boot_id            text        NOT NULL DEFAULT '',
    cpu_count          bigint      NOT NULL DEFAULT 0,
    memory_total_bytes bigint      NOT NULL DEFAULT 0,
    labels             jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    created_at         timestamptz NOT NULL DEFAULT now(),
    facts_at           timestamptz NOT NULL DEFAULT now(),
    retired_at         timestamptz
);

CREATE INDEX hosts_hostname ON hosts (hostname);

COMMENT ON TABLE hosts IS 'One row for each machine, however often its agent was installed.';
COMMENT ON COLUMN hosts.id IS 'The machine''s name for programs; it never changes.';
COMMENT ON COLUMN hosts.hostname IS 'As its agent last said.';
COMMENT ON COLUMN hosts.os IS 'Operating system, as its agent last said.';
COMMENT ON COLUMN hosts.os_version IS 'Its version.';
COMMENT ON COLUMN hosts.arch IS 'Processor architecture.';
COMMENT ON COLUMN hosts.kernel_version IS 'Kernel release.';
COMMENT ON COLUMN hosts.mac_addresses IS 'Link addresses.';
COMMENT ON COLUMN hosts.ip_addresses IS 'IP addresses.';
COMMENT ON COLUMN hosts.boot_id IS 'Random id of the machine''s current boot.';
COMMENT ON COLUMN hosts.cpu_count IS 'Logical processors.';
COMMENT ON COLUMN hosts.memory_total_bytes IS 'Installed memory.';
COMMENT ON COLUMN hosts.labels IS 'Key/value labels, from the tokens that its agents came by.';
COMMENT ON COLUMN hosts.created_at IS 'When the machine was first seen.';
COMMENT ON COLUMN hosts.facts_at IS 'When the facts in this row were last said.';
COMMENT ON COLUMN hosts.retired_at IS 'When it was taken out of service; a machine that comes back after that is a new host.';

CREATE TABLE host_identifiers (
    host_id  uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    kind     text        NOT NULL CHECK (kind IN ('cloud', 'hardware', 'machine', 'network')),
    value    text        NOT NULL,
    added_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host_id, kind, value)
);

CREATE INDEX host_identifiers_value ON host_identifiers (kind, value);

COMMENT ON TABLE host_identifiers IS
    'What machines are recognised by. Two sets of facts are the same machine when the strongest kind that both carry is equal.';
COMMENT ON COLUMN host_identifiers.host_id IS 'The machine.';
COMMENT ON COLUMN host_identifiers.kind IS 'In order of strength: cloud (instance id), hardware (UUID), machine (machine-id), network (hostname and MAC address).';
COMMENT ON COLUMN host_identifiers.value IS 'Normalised.';
COMMENT ON COLUMN host_identifiers.added_at IS 'When it was first said.';

CREATE TABLE agents (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    host_id         uuid        NOT NULL REFERENCES hosts,
    key             bytea       NOT NULL UNIQUE CHECK (octet_length(key) = 32),
    status          text        NOT NULL CHECK (status IN ('pending', 'active', 'rejected', 'revoked')),
    pending_reason  text        CHECK (pending_reason IN ('approval', 'conflict', 'clone', 'reopened')),
    conflict_with   uuid,
    cloned_from     uuid,
    token_id        uuid        REFERENCES enrolment_tokens,
    version         text        NOT NULL DEFAULT '',
    capabilities    text[]      NOT NULL DEFAULT '{}',
    facts           jsonb       NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now(),
    decided_at      timestamptz,
    decided_by      text,
    decision_reason text
);

-- One machine, one active agent: whoever approves a second must say what becomes of the first.
CREATE UNIQUE INDEX agents_one_active_per_host ON agents (host_id) WHERE status = 'active';
CREATE INDEX agents_host ON agents (host_id);
CREATE INDEX agents_token ON agents (token_id);
CREATE INDEX agents_pending ON agents (created_at) WHERE status = 'pending';
CREATE INDEX agents_pending_clones ON agents (cloned_from) WHERE status = 'pending';

COMMENT ON TABLE agents IS 'One row for each installed identity: a client key and what was decided about it.';
COMMENT ON COLUMN agents.id IS 'The agent''s identifier: sub in its JWTs.';
COMMENT ON COLUMN agents.host_id IS 'The machine it runs on.';
COMMENT ON COLUMN agents.key IS 'SHA-256 of the public key (SPKI) that it proves to hold on every connection.';
COMMENT ON COLUMN agents.status IS 'pending, active, rejected or revoked; written by decisions alone, guarded by a trigger.';
COMMENT ON COLUMN agents.pending_reason IS 'While pending, why: approval (its token asks for one), conflict (the machine has an active agent), clone (of another agent), reopened.';
COMMENT ON COLUMN agents.conflict_with IS 'With pending_reason conflict: the machine''s agent that was active when this one came.';
COMMENT ON COLUMN agents.cloned_from IS 'The agent whose key this one was cloned with, before it made its own.';
COMMENT ON COLUMN agents.token_id IS 'The token that it came by; null for clones.';
COMMENT ON COLUMN agents.version IS 'Version of the agent program.';
COMMENT ON COLUMN agents.capabilities IS 'What it can do beyond the first version of the protocol.';
COMMENT ON COLUMN agents.facts IS 'The facts that it last registered with: columns of hosts, and identifiers {kind: [value]}.';
COMMENT ON COLUMN agents.created_at IS 'When it first registered.';
COMMENT ON COLUMN agents.decided_at IS 'When its status last changed.';
COMMENT ON COLUMN agents.decided_by IS 'Who changed it, as they said; the database user stands in agent_events.';
COMMENT ON COLUMN agents.decision_reason IS 'Why, as they said.';

CREATE TABLE agent_state (
    agent_id       uuid PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    presence       text        NOT NULL DEFAULT 'offline' CHECK (presence IN ('online', 'offline')),
    presence_since timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

COMMENT ON TABLE agent_state IS 'What changes often about an agent, apart from agents so that it never blocks a decision.';
COMMENT ON COLUMN agent_state.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_state.presence IS 'Whether it has a live stream: online or offline.';
COMMENT ON COLUMN agent_state.presence_since IS 'Since when.';

CREATE TABLE agent_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    agent_id    uuid        NOT NULL,
    kind        text        NOT NULL,
    from_status text,
    to_status   text,
    actor       text,
    reason      text,
    db_user     text        NOT NULL DEFAULT session_user
);

CREATE INDEX agent_events_agent ON agent_events (agent_id, id);
CREATE INDEX agent_events_at ON agent_events (at);

COMMENT ON TABLE agent_events IS 'Every change of an agent, written in the transaction that made it. Rows outlive their agents.';
COMMENT ON COLUMN agent_events.id IS 'In order of writing.';
COMMENT ON COLUMN agent_events.at IS 'When.';
COMMENT ON COLUMN agent_events.agent_id IS 'Whose change.';
COMMENT ON COLUMN agent_events.kind IS 'What kind of change: status, or deleted.';
COMMENT ON COLUMN agent_events.from_status IS 'The status before; null at registration.';
COMMENT ON COLUMN agent_events.to_status IS 'The status after.';
COMMENT ON COLUMN agent_events.actor IS 'Who did it, as they said.';
COMMENT ON COLUMN agent_events.reason IS 'Why, as they said.';
COMMENT ON COLUMN agent_events.db_user IS 'The database user that did it.';

-- ---- The rules of an agent's life ------------------------------------------

-- Who decides, and why, can be said with set_config('svc.actor', …, true) and
-- set_config('svc.reason', …, true), or by writing decided_by and decision_reason.
CREATE FUNCTION agents_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status NOT IN ('pending', 'active') THEN
            RAISE EXCEPTION 'an agent begins as pending or active, not as %', NEW.status USING ERRCODE = 'SV409';
        END IF;
    ELSIF NEW.status <> OLD.status THEN
        IF NOT ((OLD.status = 'pending' AND NEW.status IN ('active', 'rejected'))
             OR (OLD.status = 'active' AND NEW.status = 'revoked')
             OR (OLD.status IN ('rejected', 'revoked') AND NEW.status = 'pending')) THEN
            RAISE EXCEPTION 'an agent that is % cannot become %', OLD.status, NEW.status USING ERRCODE = 'SV409';
        END IF;
        IF NEW.decided_by IS NOT DISTINCT FROM OLD.decided_by THEN
            NEW.decided_by := coalesce(nullif(current_setting('svc.actor', true), ''), session_user);
        END IF;
        IF NEW.decision_reason IS NOT DISTINCT FROM OLD.decision_reason THEN
            NEW.decision_reason := nullif(current_setting('svc.reason', true), '');
        END IF;
        NEW.decided_at := clock_timestamp();
    END IF;
    IF NEW.status <> 'pending' THEN
        NEW.pending_reason := NULL;
    ELSIF NEW.pending_reason IS NULL THEN
        NEW.pending_reason := CASE TG_OP WHEN 'INSERT' THEN 'approval' ELSE 'reopened' END;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION agents_record() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO agent_events (agent_id, kind, from_status) VALUES (OLD.id, 'deleted', OLD.status);
        PERFORM pg_notify('svc_agents', OLD.id::text);
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO agent_state (agent_id) VALUES (NEW.id);
        INSERT INTO agent_events (agent_id, kind, to_status, actor, reason)
        VALUES (NEW.id, 'status', NEW.status, NEW.decided_by, coalesce(NEW.decision_reason, NEW.pending_reason));
    ELSIF NEW.status <> OLD.status THEN
        INSERT INTO agent_events (agent_id, kind, from_status, to_status, actor, reason)
        VALUES (NEW.id, 'status', OLD.status, NEW.status, NEW.decided_by, NEW.decision_reason);
        IF NEW.status = 'active' THEN -- Its time to connect begins now.
            UPDATE agent_state SET presence_since = clock_timestamp() WHERE agent_id = NEW.id AND presence = 'offline';
        END IF;
        PERFORM pg_notify('svc_agents', NEW.id::text);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER agents_guard BEFORE INSERT OR UPDATE ON agents
    FOR EACH ROW EXECUTE FUNCTION agents_guard();
CREATE TRIGGER agents_record AFTER INSERT OR UPDATE OR DELETE ON agents
    FOR EACH ROW EXECUTE FUNCTION agents_record();

-- ---- Decisions, for the command line and the web application ---------------

CREATE FUNCTION decision_begins(actor text, reason text) RETURNS void LANGUAGE sql AS $$
    SELECT set_config('svc.actor', coalesce(left(actor, 255), ''), true),
           set_config('svc.reason', coalesce(left(reason, 1000), ''), true);
$$;

CREATE FUNCTION agent_to_decide(agent uuid) RETURNS agents LANGUAGE plpgsql AS $$
DECLARE found_agent agents;
BEGIN
    SELECT * INTO found_agent FROM agents WHERE id = agent FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no agent %', agent USING ERRCODE = 'SV404';
    END IF;
    RETURN found_agent;
END $$;

-- A host record of its own for an agent that shares another's identifiers.
CREATE FUNCTION host_for_clone(agent agents) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE new_host uuid;
BEGIN
    INSERT INTO hosts (hostname, os, os_version, arch, kernel_version, mac_addresses, ip_addresses, boot_id,
                       cpu_count, memory_total_bytes, labels)
    SELECT f.hostname, f.os, f.os_version, f.arch, f.kernel_version, f.mac_addresses, f.ip_addresses, f.boot_id,
           f.cpu_count, f.memory_total_bytes, h.labels
      FROM hosts h, jsonb_populate_record(h, agent.facts) f
     WHERE h.id = agent.host_id
    RETURNING id INTO new_host;
    INSERT INTO host_identifiers (host_id, kind, value)
    SELECT new_host, kinds.kind, identifiers.value
      FROM jsonb_each(coalesce(agent.facts -> 'identifiers', '{}')) AS kinds(kind, list),
           jsonb_array_elements_text(kinds.list) AS identifiers(value)
    ON CONFLICT DO NOTHING;
    RETURN new_host;
END $$;

CREATE FUNCTION approve_agent(agent uuid, actor text, mode text DEFAULT NULL, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    candidate agents;
    incumbent uuid;
    new_host  uuid;
BEGIN
    IF mode NOT IN ('replace', 'new-host') THEN
        RAISE EXCEPTION 'the mode is replace or new-host, not %', mode USING ERRCODE = 'SV400';
    END IF;
    candidate := agent_to_decide(agent);
    IF candidate.status <> 'pending' THEN
        RAISE EXCEPTION 'agent % is %, not pending', agent, candidate.status USING ERRCODE = 'SV409';
    END IF;
    SELECT id INTO incumbent FROM agents
     WHERE host_id = candidate.host_id AND status = 'active' FOR UPDATE;
    IF incumbent IS NOT NULL AND mode IS NULL THEN
        RAISE EXCEPTION 'the machine of agent % has the active agent %', agent, incumbent
            USING ERRCODE = 'SV410',
                  HINT = 'say what is meant: replace (the same machine, reinstalled: the old agent is revoked) or new-host (another machine)';
    END IF;
    IF incumbent IS NULL AND mode = 'new-host' THEN
        RAISE EXCEPTION 'agent % stands on a host of its own already', agent
            USING ERRCODE = 'SV409', HINT = 'approve it without a mode';
    END IF;
    IF mode = 'replace' AND incumbent IS NOT NULL THEN
        PERFORM decision_begins(actor, 'superseded by ' || agent);
        UPDATE agents SET status = 'revoked' WHERE id = incumbent;
    ELSIF mode = 'new-host' THEN
        new_host := host_for_clone(candidate);
    END IF;
    PERFORM decision_begins(actor, reason);
    UPDATE agents SET status = 'active', host_id = coalesce(new_host, host_id) WHERE id = agent;
END $$;

CREATE FUNCTION reject_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'rejected' WHERE id = agent;
END $$;

CREATE FUNCTION revoke_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'revoked' WHERE id = agent;
END $$;

CREATE FUNCTION reopen_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'pending' WHERE id = agent;
END $$;

CREATE FUNCTION add_enrolment_token(
        hash bytea, label text, actor text, max_uses integer DEFAULT 1,
        expires_at timestamptz DEFAULT now() + interval '7 days', labels jsonb DEFAULT '{}')
    RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    INSERT INTO enrolment_tokens (hash, label, created_by, max_uses, expires_at, labels)
    VALUES (hash, label, actor, max_uses, expires_at, labels) RETURNING id;
$$;

CREATE FUNCTION revoke_enrolment_token(token uuid, actor text, revoke_agents boolean DEFAULT false)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer := 0;
BEGIN
    UPDATE enrolment_tokens SET revoked_at = coalesce(revoked_at, now()), revoked_by = coalesce(revoked_by, actor)
     WHERE id = token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no enrolment token %', token USING ERRCODE = 'SV404';
    END IF;
    IF revoke_agents THEN
        PERFORM decision_begins(actor, 'enrolment token revoked');
        WITH decided AS (
            UPDATE agents SET status = CASE status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
             WHERE token_id = token AND status IN ('active', 'pending') RETURNING id)
        SELECT count(*) INTO touched FROM decided;
    END IF;
    RETURN touched;
END $$;

CREATE FUNCTION retire_host(host uuid, actor text, reason text DEFAULT NULL)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer;
BEGIN
    UPDATE hosts SET retired_at = coalesce(retired_at, now()) WHERE id = host;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    PERFORM decision_begins(actor, coalesce(reason, 'host retired'));
    WITH decided AS (
        UPDATE agents SET status = CASE status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
         WHERE host_id = host AND status IN ('active', 'pending') RETURNING id)
    SELECT count(*) INTO touched FROM decided;
    RETURN touched;
END $$;

-- Nobody calls these unless granted: see INGEST_WEB_ROLE. The trigger functions are among them because
-- whoever may call one may hang it on a table of their own, and so forge events with the owner's rights.
REVOKE EXECUTE ON FUNCTION
    agents_guard, agents_record, decision_begins, agent_to_decide, host_for_clone, approve_agent, reject_agent, revoke_agent, reopen_agent,
    add_enrolment_token, revoke_enrolment_token, retire_host FROM PUBLIC;
