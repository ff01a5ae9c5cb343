-- Enrolment: tokens, hosts, agents, the record of every change of them, and the decisions about them.
--
-- The rules of an agent's life are in a trigger, so that they hold whoever writes: the service, the command line, or the web application.
--
-- Functions with their owner's rights, and what they call, name exactly the operators and functions that they mean. If none takes exactly
-- the given types, PostgreSQL chooses the closest one of the search path, and a role that may create objects in our schema could add a
-- closer one. So literals are cast, and `pg_catalog.` is written before functions that take any type.

-- ---- Labels --------------------------------------------------------------------------------------
-- Labels in crates/store/src/values/labels.rs is the same rule; store/tests/it/labels.rs compares the two. Every table that stores labels has it as
-- a constraint, so no function stores what another one refuses.
CREATE FUNCTION labels_problem(labels jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF labels = '{}' THEN
        RETURN NULL;
    ELSIF jsonb_typeof(labels) IS DISTINCT FROM 'object' THEN
        RETURN 'labels are an object of texts';
    ELSIF (SELECT count(*) FROM jsonb_object_keys(labels)) > 64 THEN
        RETURN 'there are more than 64 labels';
    END IF;
    RETURN (
        SELECT CASE
            WHEN label.key !~ '^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$' THEN pg_catalog.format(
                'the key of a label begins with a letter or digit and has at most 63 letters, digits, and . _ - /, not %L', left(label.key, 80))
            WHEN jsonb_typeof(label.value) <> 'string' THEN 'labels are an object of texts'
            WHEN octet_length(label.value #>> '{}'::text[]) > 255
              OR (label.value #>> '{}'::text[]) ~ '[\u0001-\u001f\u007f-\u009f,]' THEN pg_catalog.format(
                'the value of the label %s is longer than 255 bytes, or has a comma or a control character', label.key)
            END
          FROM jsonb_each(labels) AS label ORDER BY 1 LIMIT 1);
END $$;
COMMENT ON FUNCTION labels_problem IS 'Why these are no labels; null if they are: an object of at most 64 texts of at most 255 bytes, with keys of at most 63.';

-- ---- Tokens --------------------------------------------------------------------------------------
CREATE TABLE enrolment_tokens (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    hash            bytea       NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    label           text        NOT NULL DEFAULT '' CHECK (octet_length(label) <= 255),
    auto_approve    boolean     NOT NULL DEFAULT false,
    allow_reinstall boolean     NOT NULL DEFAULT false,
    max_uses        integer     NOT NULL DEFAULT 1 CHECK (max_uses > 0),
    uses            integer     NOT NULL DEFAULT 0,
    labels          jsonb       NOT NULL DEFAULT '{}' CHECK (labels_problem(labels) IS NULL),
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text        NOT NULL DEFAULT session_user,
    expires_at      timestamptz,
    revoked_at      timestamptz,
    revoked_by      text,
    last_used_at    timestamptz,
    CHECK (uses BETWEEN 0 AND max_uses)
);
COMMENT ON TABLE enrolment_tokens IS 'What admits new agents. Active, expired, exhausted and revoked are derived from the columns: see the view enrolment_token_states.';
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

-- The view, the lookups of the service and the statement that takes a use of a token all call this. PostgreSQL inlines it.
CREATE FUNCTION enrolment_token_state(token enrolment_tokens) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN token.revoked_at IS NOT NULL THEN 'revoked'
                WHEN token.expires_at <= now() THEN 'expired'
                WHEN token.uses >= token.max_uses THEN 'exhausted'
                ELSE 'active' END;
$$;
COMMENT ON FUNCTION enrolment_token_state IS 'The state of a token now: active, expired, exhausted or revoked. PUBLIC may call it, because a view calls its functions with the rights of its reader.';

-- Every registration, and the admission of reinstallations, decide by this. PostgreSQL inlines it. A stored time that is in the future was
-- written before the clock was set back: nobody knows how long that agent has been offline.
CREATE FUNCTION enrolment_token_effect(token enrolment_tokens, incumbent uuid, offline_since timestamptz, quiet double precision)
    RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN incumbent IS NULL AND token.auto_approve THEN 'activate'
                WHEN incumbent IS NULL THEN 'leave pending'
                WHEN token.auto_approve AND token.allow_reinstall AND offline_since <= now() - make_interval(secs => quiet) THEN 'replace'
                ELSE 'conflict' END;
$$;
COMMENT ON FUNCTION enrolment_token_effect IS 'What a token does for a key that it admits: activate or leave pending where the machine has no active agent; replace that incumbent, if it has been offline for `quiet` seconds (offline_since is null while it is online), or conflict.';

CREATE VIEW enrolment_token_states AS
    SELECT id, label, auto_approve, allow_reinstall, max_uses, uses, labels, created_at, created_by,
           expires_at, revoked_at, revoked_by, last_used_at, enrolment_token_state(token) AS state
      FROM enrolment_tokens token;

COMMENT ON VIEW enrolment_token_states IS 'Tokens without their hashes, with the state that follows from their columns.';
COMMENT ON COLUMN enrolment_token_states.state IS 'active, expired, exhausted or revoked.';
SELECT comments_copy('enrolment_token_states', 'enrolment_tokens');

CREATE TABLE enrolment_token_uses (
    token_id uuid        NOT NULL REFERENCES enrolment_tokens ON DELETE CASCADE,
    key      bytea       NOT NULL CHECK (octet_length(key) = 32),
    used_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (token_id, key)
);
COMMENT ON TABLE enrolment_token_uses IS 'Which keys have spent a use of which token. Rows outlive their agents, so that a key never spends a token twice.';
COMMENT ON COLUMN enrolment_token_uses.token_id IS 'The token.';
COMMENT ON COLUMN enrolment_token_uses.key IS 'SHA-256 of the public key (SPKI) that it admitted.';
COMMENT ON COLUMN enrolment_token_uses.used_at IS 'When.';

-- ---- Hosts ---------------------------------------------------------------------------------------
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
    labels             jsonb       NOT NULL DEFAULT '{}' CHECK (labels_problem(labels) IS NULL),
    created_at         timestamptz NOT NULL DEFAULT now(),
    facts_at           timestamptz NOT NULL DEFAULT now(),
    retired_at         timestamptz
);
-- In the order of the lists, and for their conditions.
CREATE INDEX hosts_name ON hosts (hostname, id);
CREATE INDEX hosts_in_service ON hosts (hostname, id) WHERE retired_at IS NULL;
CREATE INDEX hosts_retired ON hosts (hostname, id) WHERE retired_at IS NOT NULL;
CREATE INDEX hosts_system ON hosts ((os || ' ' || os_version));
CREATE INDEX hosts_labels ON hosts USING gin (labels jsonb_path_ops);
CREATE INDEX hosts_ip_addresses ON hosts USING gin (ip_addresses);

-- Without the extension a search for a part of a hostname reads all names, but the service starts. Comparing letters of the C locale is
-- several times faster than ILIKE, which matters where a search finds half of the fleet. Names are ASCII.
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXECUTE format('CREATE INDEX hosts_name_parts ON hosts USING gin (lower(hostname COLLATE "C") %s.gin_trgm_ops)',
                   (SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_trgm'));
EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR undefined_object THEN
    RAISE WARNING 'the search for parts of a hostname has no index: %', SQLERRM;
END $$;

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
COMMENT ON COLUMN hosts.labels IS 'Key/value labels, from the tokens that its agents came by, and from people.';
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
COMMENT ON TABLE host_identifiers IS 'What machines are recognised by. Two sets of facts are the same machine when the strongest kind that both carry is equal.';
COMMENT ON COLUMN host_identifiers.host_id IS 'The machine.';
COMMENT ON COLUMN host_identifiers.kind IS 'In order of strength: cloud (instance id), hardware (UUID), machine (machine-id), network (hostname and MAC address).';
COMMENT ON COLUMN host_identifiers.value IS 'Normalised.';
COMMENT ON COLUMN host_identifiers.added_at IS 'When it was first said.';

-- Facts are claims. A claim must not take the identifiers of another machine, because later registrations of that machine would then find
-- the wrong host, nor fill the table. A host that is created in this transaction keeps what it is created with: the registration has
-- looked for its machine before, and machines that were cloned from one image share the weaker kinds.
CREATE FUNCTION host_identifiers_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE most CONSTANT integer := 64;
BEGIN
    IF (SELECT count(*) FROM host_identifiers i WHERE i.host_id = NEW.host_id AND i.kind = NEW.kind) >= most THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM hosts h WHERE h.id = NEW.host_id AND h.created_at = now())
       AND EXISTS (SELECT FROM host_identifiers i JOIN hosts h ON h.id = i.host_id AND h.retired_at IS NULL
                WHERE i.kind = NEW.kind AND i.value = NEW.value AND i.host_id <> NEW.host_id) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION host_identifiers_limit IS 'Leaves out an identifier that another host in service has, and those beyond 64 of one kind.';
CREATE TRIGGER host_identifiers_limit BEFORE INSERT ON host_identifiers FOR EACH ROW EXECUTE FUNCTION host_identifiers_limit();

CREATE TABLE host_events (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    host_id  uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    agent_id uuid,
    kind     text        NOT NULL CHECK (kind IN ('note', 'labels', 'retired')),
    actor    text        NOT NULL CHECK (octet_length(actor) <= 255),
    text     text        NOT NULL CHECK (octet_length(text) <= 2000),
    db_user  text        NOT NULL DEFAULT session_user
);
CREATE INDEX host_events_host ON host_events (host_id, at);
CREATE INDEX host_events_at ON host_events (at, id);
COMMENT ON TABLE host_events IS 'What happened to a host and is no change of an agent: notes, changes of labels, retirement.';
COMMENT ON COLUMN host_events.id IS 'In order of writing, not of commit.';
COMMENT ON COLUMN host_events.at IS 'When.';
COMMENT ON COLUMN host_events.host_id IS 'The host.';
COMMENT ON COLUMN host_events.agent_id IS 'The agent that added the note; null where a person did.';
COMMENT ON COLUMN host_events.kind IS 'note, labels or retired.';
COMMENT ON COLUMN host_events.actor IS 'The person, or the agent, that did it.';
COMMENT ON COLUMN host_events.text IS 'The note, or what changed.';
COMMENT ON COLUMN host_events.db_user IS 'The database user that wrote it.';

-- ---- Agents --------------------------------------------------------------------------------------
CREATE TABLE agents (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    host_id            uuid        NOT NULL REFERENCES hosts,
    key                bytea       NOT NULL UNIQUE CHECK (octet_length(key) = 32),
    status             text        NOT NULL CHECK (status IN ('pending', 'active', 'rejected', 'revoked')),
    pending_reason     text        CHECK (pending_reason IN ('approval', 'conflict', 'clone', 'reopened')),
    conflict_with      uuid,
    cloned_from        uuid,
    token_id           uuid        REFERENCES enrolment_tokens,
    version            text        NOT NULL DEFAULT '',
    capabilities       text[]      NOT NULL DEFAULT '{}',
    facts              jsonb       NOT NULL DEFAULT '{}',
    created_at         timestamptz NOT NULL DEFAULT now(),
    registered_from    inet,
    decided_at         timestamptz,
    decided_by         text,
    decision_reason    text,
    machine_changed_at timestamptz,
    key_since          timestamptz NOT NULL DEFAULT now(),
    key_change_at      timestamptz
);
-- One machine, one active agent: an approval of a second must say what becomes of the first.
CREATE UNIQUE INDEX agents_one_active_per_host ON agents (host_id) WHERE status = 'active';
CREATE INDEX agents_host ON agents (host_id);
CREATE INDEX agents_token ON agents (token_id);
CREATE INDEX agents_pending ON agents (created_at) WHERE status = 'pending';
CREATE INDEX agents_pending_clones ON agents (cloned_from) WHERE status = 'pending';
CREATE INDEX agents_not_active ON agents (id) WHERE status <> 'active';
CREATE INDEX agents_version ON agents (version) WHERE status = 'active';
CREATE INDEX agents_key_change ON agents (key_change_at) WHERE key_change_at IS NOT NULL;
COMMENT ON TABLE agents IS 'One row for each installed identity: a client key and what was decided about it.';
COMMENT ON COLUMN agents.id IS 'The agent''s identifier: sub in its JWTs.';
COMMENT ON COLUMN agents.host_id IS 'The machine it runs on.';
COMMENT ON COLUMN agents.key IS 'SHA-256 of the public key (SPKI) that it proves to hold on every connection. Its other keys are in agent_keys.';
COMMENT ON COLUMN agents.status IS 'pending, active, rejected or revoked; written by decisions alone, guarded by a trigger.';
COMMENT ON COLUMN agents.pending_reason IS 'While pending, why: approval (its token asks for one), conflict (the machine has an active agent), clone (of another agent), reopened.';
COMMENT ON COLUMN agents.conflict_with IS 'With pending_reason conflict: the machine''s agent that was active when this one came.';
COMMENT ON COLUMN agents.cloned_from IS 'The agent whose key this one was cloned with, before it made its own.';
COMMENT ON COLUMN agents.token_id IS 'The token that it came by; null for clones.';
COMMENT ON COLUMN agents.version IS 'Version of the agent program.';
COMMENT ON COLUMN agents.capabilities IS 'What it can do beyond the first version of the protocol.';
COMMENT ON COLUMN agents.facts IS 'The facts that it last registered with: columns of hosts, and identifiers {kind: [value]}.';
COMMENT ON COLUMN agents.created_at IS 'When it first registered.';
COMMENT ON COLUMN agents.registered_from IS 'The address from which its key was registered.';
COMMENT ON COLUMN agents.decided_at IS 'When its status last changed.';
COMMENT ON COLUMN agents.decided_by IS 'Who changed it, as they said; the database user is in agent_events.';
COMMENT ON COLUMN agents.decision_reason IS 'Why, as they said.';
COMMENT ON COLUMN agents.machine_changed_at IS 'When this identity last came from another machine than before, while its own was offline: a machine that failed over, or a copy that came first.';
COMMENT ON COLUMN agents.key_since IS 'Since when this is its key.';
COMMENT ON COLUMN agents.key_change_at IS 'When a person asked for another key; null: nobody did, or it has changed since.';

CREATE TABLE agent_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    agent_id    uuid        NOT NULL,
    kind        text        NOT NULL,
    from_status text,
    to_status   text,
    actor       text,
    reason      text,
    address     inet,
    db_user     text        NOT NULL DEFAULT session_user
);
CREATE INDEX agent_events_agent ON agent_events (agent_id, id);
CREATE INDEX agent_events_at ON agent_events (at);
COMMENT ON TABLE agent_events IS 'Every change of an agent, written in the transaction that made it. Rows outlive their agents.';
COMMENT ON COLUMN agent_events.id IS 'In order of writing.';
COMMENT ON COLUMN agent_events.at IS 'When.';
COMMENT ON COLUMN agent_events.agent_id IS 'Whose change.';
COMMENT ON COLUMN agent_events.kind IS 'What kind of change: status, presence, clone, machine changed, host returned, key change asked, key changed, retired key (somebody used it), cell (told to move, or expected from another cell), or deleted.';
COMMENT ON COLUMN agent_events.from_status IS 'The status before; null at registration.';
COMMENT ON COLUMN agent_events.to_status IS 'The status after.';
COMMENT ON COLUMN agent_events.actor IS 'Who did it, as they said.';
COMMENT ON COLUMN agent_events.reason IS 'Why, as they said.';
COMMENT ON COLUMN agent_events.address IS 'The address that the agent, or the copy of it, came from: of registrations, connections, clones and keys. Null otherwise.';
COMMENT ON COLUMN agent_events.db_user IS 'The database user that did it.';

-- ---- The rules of an agent's life ----------------------------------------------------------------
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
COMMENT ON FUNCTION agents_guard IS 'Which status may follow which. Who decides, and why, is said by set_config(''svc.actor'', …, true) and ''svc.reason'', or in decided_by and decision_reason.';
CREATE TRIGGER agents_guard BEFORE INSERT OR UPDATE ON agents FOR EACH ROW EXECUTE FUNCTION agents_guard();

-- A registration that has found a host waits for a retirement that is under way, and starts over if that commits
-- (serialization_failure): it must not leave an active agent on a retired host.
--
-- Lock order: agents, agent_state, hosts.
CREATE FUNCTION agents_record() RETURNS trigger LANGUAGE plpgsql
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
COMMENT ON FUNCTION agents_record IS 'Records and announces a change of an agent, gives a new one its state, and an admitted one''s facts to its host.';
CREATE TRIGGER agents_record AFTER INSERT OR UPDATE OR DELETE ON agents FOR EACH ROW EXECUTE FUNCTION agents_record();

-- A channel of its own, because instances have nothing to do for a new agent. Each NOTIFY takes a lock of the whole server at commit.
CREATE FUNCTION agents_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('svc_registrations'::text, NEW.id::text);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION agents_announce IS 'Announces a new pending agent on the channel svc_registrations.';
CREATE TRIGGER agents_announce AFTER INSERT ON agents
    FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION agents_announce();

-- ---- Decisions, for the command line and the web application -------------------------------------
CREATE FUNCTION decision_begins(actor text, reason text) RETURNS void LANGUAGE sql AS $$
    SELECT set_config('svc.actor', coalesce(left(actor, 255), ''), true),
           set_config('svc.reason', coalesce(left(reason, 1000), ''), true);
$$;
COMMENT ON FUNCTION decision_begins IS 'Who decides in this transaction, and why.';

CREATE FUNCTION agent_to_decide(agent uuid) RETURNS agents LANGUAGE plpgsql AS $$
DECLARE found_agent agents;
BEGIN
    SELECT * INTO found_agent FROM agents WHERE id = agent FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no agent %', agent USING ERRCODE = 'SV404';
    END IF;
    RETURN found_agent;
END $$;
COMMENT ON FUNCTION agent_to_decide IS 'The agent, locked. Refuses an unknown one with SV404.';

-- Lists and pages read it with what they show. An approval compares it under its locks.
CREATE FUNCTION agent_seen(agent agents, incumbent uuid) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT left(encode(sha256(convert_to(pg_catalog.jsonb_build_array(
        agent.host_id, incumbent, agent.pending_reason, agent.version, agent.facts)::text, 'UTF8'::name)), 'hex'::text), 16);
$$;
COMMENT ON FUNCTION agent_seen IS 'A short hash of what a person decides by: the pending agent''s host, reason, version and facts, and the active agent of its machine (null: none).';

CREATE FUNCTION approve_agent(agent uuid, actor text, mode text DEFAULT NULL, reason text DEFAULT NULL, seen text DEFAULT NULL)
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
    SELECT id INTO incumbent FROM agents WHERE host_id = candidate.host_id AND status = 'active' FOR UPDATE;
    IF seen <> agent_seen(candidate, incumbent) THEN
        RAISE EXCEPTION 'agent % or the active agent of its machine has changed since it was shown', agent
            USING ERRCODE = 'SV409', HINT = 'look at it again before you decide';
    END IF;
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
        PERFORM decision_begins(actor, 'superseded by '::text || agent::text);
        UPDATE agents SET status = 'revoked' WHERE id = incumbent;
    ELSIF mode = 'new-host' THEN -- It takes the agent's facts when the agent is admitted.
        INSERT INTO hosts (hostname, labels) SELECT h.hostname, h.labels FROM hosts h WHERE h.id = candidate.host_id
        RETURNING id INTO new_host;
    END IF;
    PERFORM decision_begins(actor, reason);
    UPDATE agents SET status = 'active', host_id = coalesce(new_host, host_id) WHERE id = agent;
END $$;
COMMENT ON FUNCTION approve_agent IS 'Makes a pending agent active. If its machine has an active agent, mode is replace (that one is revoked) or new-host. Refuses with SV409 if seen is given and is not agent_seen now.';

CREATE FUNCTION reject_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'rejected' WHERE id = agent;
END $$;
COMMENT ON FUNCTION reject_agent IS 'Rejects a pending agent.';

CREATE FUNCTION revoke_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'revoked' WHERE id = agent;
END $$;
COMMENT ON FUNCTION revoke_agent IS 'Revokes an active agent.';

CREATE FUNCTION reopen_agent(agent uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM agent_to_decide(agent), decision_begins(actor, reason);
    UPDATE agents SET status = 'pending' WHERE id = agent;
END $$;
COMMENT ON FUNCTION reopen_agent IS 'Makes a rejected or revoked agent pending again.';

CREATE FUNCTION add_enrolment_token(
        hash bytea, label text, actor text, max_uses integer DEFAULT 1,
        expires_at timestamptz DEFAULT now() + interval '7 days', labels jsonb DEFAULT '{}')
    RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    problem text := CASE
        WHEN hash IS NULL OR octet_length(hash) <> 32 THEN 'the hash is not the 32 bytes of a SHA-256'
        WHEN label IS NULL OR octet_length(label) > 255 THEN 'the label is missing or longer than 255 bytes'
        WHEN actor IS NULL THEN 'the actor is missing'
        WHEN max_uses IS NULL OR max_uses < 1 THEN 'max_uses is not a positive number'
        ELSE labels_problem(labels)
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
COMMENT ON FUNCTION add_enrolment_token IS 'Adds a token that another program made, by its SHA-256. Such a token never approves by itself. Refuses wrong arguments with SV400 and a known hash with SV409.';

CREATE FUNCTION revoke_enrolment_token(token uuid, actor text, revoke_agents boolean DEFAULT false, reason text DEFAULT NULL)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer := 0;
BEGIN
    PERFORM decision_begins(actor, reason);
    UPDATE enrolment_tokens t SET revoked_at = coalesce(t.revoked_at, now()), revoked_by = coalesce(t.revoked_by, actor)
     WHERE t.id = token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no enrolment token %', token USING ERRCODE = 'SV404';
    END IF;
    IF revoke_agents THEN
        -- In one order, so that two decisions about the same agents wait for each other.
        PERFORM FROM agents a WHERE a.token_id = token AND a.status IN ('active', 'pending') ORDER BY a.id FOR UPDATE;
        PERFORM decision_begins(actor, coalesce('enrolment token revoked: '::text || reason, 'enrolment token revoked'::text));
        WITH decided AS (
            UPDATE agents a SET status = CASE a.status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
             WHERE a.token_id = token AND a.status IN ('active', 'pending') RETURNING a.id)
        SELECT count(*) INTO touched FROM decided;
    END IF;
    RETURN touched;
END $$;
COMMENT ON FUNCTION revoke_enrolment_token IS 'Revokes a token and, if asked to, the agents that registered with it: active ones are revoked, pending ones rejected. Returns how many agents.';

-- In the lock order of an approval: agents before hosts.
CREATE FUNCTION retire_host(host uuid, actor text, reason text DEFAULT NULL)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer;
BEGIN
    PERFORM FROM agents a WHERE a.host_id = host AND a.status IN ('active', 'pending') ORDER BY a.id FOR UPDATE;
    UPDATE hosts h SET retired_at = now() WHERE h.id = host AND h.retired_at IS NULL;
    IF FOUND THEN
        INSERT INTO host_events (host_id, kind, actor, text)
        VALUES (host, 'retired', left(coalesce(actor, ''::text), 255), left(coalesce(reason, ''::text), 500));
    ELSIF NOT EXISTS (SELECT FROM hosts h WHERE h.id = host) THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    PERFORM decision_begins(actor, coalesce(reason, 'host retired'::text));
    WITH decided AS (
        UPDATE agents a SET status = CASE a.status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
         WHERE a.host_id = host AND a.status IN ('active', 'pending') RETURNING a.id)
    SELECT count(*) INTO touched FROM decided;
    RETURN touched;
END $$;
COMMENT ON FUNCTION retire_host IS 'Takes a host out of service: its active agent is revoked, pending ones are rejected. Returns how many agents.';

CREATE FUNCTION label_hosts(host_ids uuid[], added jsonb, removed text[], actor text)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    problem text := labels_problem(added);
    touched integer;
BEGIN
    removed := coalesce(removed, '{}'::text[]);
    IF problem IS NULL THEN
        SELECT pg_catalog.min(labels_problem((locked.labels || added) - removed)) INTO problem
          FROM (SELECT h.labels FROM hosts h WHERE h.id = ANY (host_ids) ORDER BY h.id FOR UPDATE) locked;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'SV400';
    END IF;
    WITH chosen AS (
        SELECT h.id, (h.labels || added) - removed AS labels FROM hosts h
         WHERE h.id = ANY (host_ids) AND (h.labels || added) - removed <> h.labels),
    changed AS (
        UPDATE hosts h SET labels = chosen.labels FROM chosen WHERE h.id = chosen.id RETURNING h.id),
    noted AS (
        INSERT INTO host_events (host_id, kind, actor, text)
        SELECT changed.id, 'labels', left(actor, 255),
               left(pg_catalog.concat_ws(', ',
                    (SELECT pg_catalog.string_agg(key || '='::text || value, ', '::text ORDER BY key) FROM jsonb_each_text(added)),
                    (SELECT pg_catalog.string_agg('-'::text || name, ', '::text ORDER BY name) FROM pg_catalog.unnest(removed) AS name)), 1000)
          FROM changed)
    SELECT count(*) INTO touched FROM changed;
    RETURN touched;
END $$;
COMMENT ON FUNCTION label_hosts IS 'Adds and removes labels of hosts. Returns how many hosts changed. Refuses labels_problem with SV400.';

CREATE FUNCTION add_host_note(host uuid, agent uuid, actor text, note text)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE added bigint;
BEGIN
    IF octet_length(note) NOT BETWEEN 1 AND 500 THEN
        RAISE EXCEPTION 'a note has 1 to 500 bytes' USING ERRCODE = 'SV400';
    END IF;
    IF NOT EXISTS (SELECT FROM hosts h WHERE h.id = host) THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    INSERT INTO host_events (host_id, agent_id, kind, actor, text)
    VALUES (host, agent, 'note', left(actor, 255), note) RETURNING id INTO added;
    RETURN added;
END $$;
COMMENT ON FUNCTION add_host_note IS 'Adds a note of 1 to 500 bytes to a host. The agent is null where a person adds it.';

CREATE FUNCTION expire_hosts(offline_for interval, actor text, most integer DEFAULT 1000)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    expired record;
    touched integer := 0;
BEGIN
    IF offline_for < interval '1 hour' THEN
        RAISE EXCEPTION 'hosts expire after an hour at least' USING ERRCODE = 'SV400';
    END IF;
    FOR expired IN
        SELECT h.id, s.presence_since FROM agent_state s
          JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
          JOIN hosts h ON h.id = a.host_id AND h.retired_at IS NULL
         WHERE s.presence = 'offline' AND s.presence_since < now() - offline_for
         ORDER BY s.presence_since LIMIT most
    LOOP
        PERFORM retire_host(expired.id, actor, 'offline since '::text || pg_catalog.date_trunc('second'::text, expired.presence_since)::text);
        touched := touched + 1;
    END LOOP;
    RETURN touched;
END $$;
COMMENT ON FUNCTION expire_hosts IS 'Retires hosts whose active agent has been offline for at least this long, the longest first. Returns how many.';

-- The trigger functions are among them because a role that may call one may attach it to a table of its own, and so forge events.
REVOKE EXECUTE ON FUNCTION
    labels_problem, enrolment_token_effect, host_identifiers_limit, agents_guard, agents_record, agents_announce, decision_begins, agent_to_decide, agent_seen, approve_agent, reject_agent,
    revoke_agent, reopen_agent, add_enrolment_token, revoke_enrolment_token, retire_host, label_hosts, add_host_note, expire_hosts
    FROM PUBLIC;
