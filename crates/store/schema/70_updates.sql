-- Updates of agents: the releases that people have added, their rollouts, and how far each agent is.
--
-- Nothing here makes an agent run anything: agents believe a manifest for its signature alone. The service decides when, and for whom.

CREATE TABLE agent_releases (
    serial    bigint      PRIMARY KEY CHECK (serial > 0),
    version   text        NOT NULL CHECK (octet_length(version) BETWEEN 1 AND 255),
    platforms text[]      NOT NULL CHECK (cardinality(platforms) BETWEEN 1 AND 64),
    manifest  bytea       NOT NULL CHECK (octet_length(manifest) BETWEEN 1 AND 4096),
    signature bytea       NOT NULL CHECK (octet_length(signature) = 64),
    added_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    added_by  text        NOT NULL CHECK (octet_length(added_by) <= 255)
);
COMMENT ON TABLE agent_releases IS 'Signed manifests that may be rolled out.';
COMMENT ON COLUMN agent_releases.serial IS 'The number of the manifest. Agents refuse one that is lower than what they had.';
COMMENT ON COLUMN agent_releases.version IS 'The version of the agent. A higher serial may name an older version: that is how a release is taken back.';
COMMENT ON COLUMN agent_releases.platforms IS 'The platforms that it has a program for, such as linux/x86_64.';
COMMENT ON COLUMN agent_releases.manifest IS 'Its bytes as they were signed.';
COMMENT ON COLUMN agent_releases.signature IS 'Ed25519, of the manifest''s bytes.';
COMMENT ON COLUMN agent_releases.added_at IS 'When it was added.';
COMMENT ON COLUMN agent_releases.added_by IS 'Who added it, as they said.';

CREATE TABLE rollouts (
    serial       bigint      PRIMARY KEY REFERENCES agent_releases,
    selector     jsonb       NOT NULL CHECK (labels_problem(selector) IS NULL),
    stages       text[]      NOT NULL CHECK (cardinality(stages) BETWEEN 1 AND 16),
    soak_seconds integer     NOT NULL CHECK (soak_seconds BETWEEN 0 AND 2592000),
    hours        text        NOT NULL DEFAULT '' CHECK (octet_length(hours) <= 64),
    undoes       bigint      REFERENCES agent_releases,
    state        text        NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'halted', 'done')),
    stage        integer     NOT NULL DEFAULT 0 CHECK (stage >= 0 AND stage < cardinality(stages)),
    stage_since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    threshold    integer     NOT NULL DEFAULT 0 CHECK (threshold BETWEEN 0 AND 1000000),
    reason       text        NOT NULL DEFAULT '' CHECK (octet_length(reason) <= 1000),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL CHECK (octet_length(created_by) <= 255),
    CHECK (undoes < serial)
);
COMMENT ON TABLE rollouts IS 'Which agents a release is offered to, and how far that has come.';
COMMENT ON COLUMN rollouts.serial IS 'The release. It has one rollout.';
COMMENT ON COLUMN rollouts.selector IS 'The labels of the hosts that are meant; without labels, all. No other host is offered anything.';
COMMENT ON COLUMN rollouts.stages IS 'The stages in order: a number of hosts (5) or a share of them (10%).';
COMMENT ON COLUMN rollouts.soak_seconds IS 'How long a stage lasts at least.';
COMMENT ON COLUMN rollouts.hours IS 'When agents are offered the release and stages advance, in UTC: mon-fri 08:00-16:00. Empty: always.';
COMMENT ON COLUMN rollouts.undoes IS 'The release that it takes back: only agents that have had that one are meant. Null: all.';
COMMENT ON COLUMN rollouts.state IS 'running; paused by a person; halted by the service, and why is in reason; done: the last stage is over, and hosts that come later are offered it.';
COMMENT ON COLUMN rollouts.stage IS 'The present stage, from 0.';
COMMENT ON COLUMN rollouts.stage_since IS 'When it began, or when the rollout was resumed.';
COMMENT ON COLUMN rollouts.threshold IS 'Agents whose place is below it are offered the release. It never falls.';
COMMENT ON COLUMN rollouts.reason IS 'Why the state is what it is, for people.';
COMMENT ON COLUMN rollouts.created_at IS 'When it was started.';
COMMENT ON COLUMN rollouts.created_by IS 'Who started it, as they said.';

CREATE TABLE rollout_skips (
    serial  bigint      NOT NULL REFERENCES rollouts,
    host_id uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (serial, host_id)
);
COMMENT ON TABLE rollout_skips IS 'Hosts that a rollout leaves out, because a person said so.';
COMMENT ON COLUMN rollout_skips.serial IS 'The rollout.';
COMMENT ON COLUMN rollout_skips.host_id IS 'The host. It is neither offered the release nor counted.';
COMMENT ON COLUMN rollout_skips.at IS 'Since when.';

CREATE TABLE rollout_events (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    serial  bigint      NOT NULL,
    kind    text        NOT NULL CHECK (kind IN ('release added', 'rollout started', 'rollout advanced', 'rollout halted', 'rollout paused',
                                                 'rollout resumed', 'rollout done', 'host skipped')),
    actor   text        NOT NULL CHECK (octet_length(actor) <= 255),
    text    text        NOT NULL CHECK (octet_length(text) <= 2000),
    db_user text        NOT NULL DEFAULT session_user
);
CREATE INDEX rollout_events_at ON rollout_events (at, id);
COMMENT ON TABLE rollout_events IS 'What happened to releases and rollouts, written in the transaction that did it.';
COMMENT ON COLUMN rollout_events.id IS 'In order of writing, not of commit.';
COMMENT ON COLUMN rollout_events.at IS 'When.';
COMMENT ON COLUMN rollout_events.serial IS 'The release.';
COMMENT ON COLUMN rollout_events.kind IS 'What happened.';
COMMENT ON COLUMN rollout_events.actor IS 'Who did it, as they said; svc-ingest for what the service decided.';
COMMENT ON COLUMN rollout_events.text IS 'What changed, and why.';
COMMENT ON COLUMN rollout_events.db_user IS 'The database user that wrote it.';

-- A row changes a few times with each release, so it is apart from agent_state.
CREATE TABLE agent_updates (
    agent_id       uuid        PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    serial         bigint      NOT NULL DEFAULT 0 CHECK (serial >= 0),
    step           text        NOT NULL DEFAULT 'none' CHECK (step IN ('none', 'offered', 'downloading', 'staged', 'trying', 'approved',
                                                                       'refused', 'unable')),
    version        text        NOT NULL DEFAULT '' CHECK (octet_length(version) <= 255),
    platform       text        NOT NULL DEFAULT '' CHECK (octet_length(platform) <= 255),
    reason         text        NOT NULL DEFAULT '' CHECK (octet_length(reason) <= 500),
    log_tail       text        NOT NULL DEFAULT '' CHECK (octet_length(log_tail) <= 2048),
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    offered_serial bigint      REFERENCES agent_releases,
    offered_at     timestamptz
);
CREATE INDEX agent_updates_offered ON agent_updates (offered_serial, step) WHERE offered_serial IS NOT NULL;
COMMENT ON TABLE agent_updates IS 'How far each agent is with its update, as it said last. Agents that never said anything of updates have no row, and are offered none.';
COMMENT ON COLUMN agent_updates.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_updates.serial IS 'The release that step is about; 0 before the first.';
COMMENT ON COLUMN agent_updates.step IS 'none, offered (verified by the agent), downloading, staged, trying, approved, refused or unable.';
COMMENT ON COLUMN agent_updates.version IS 'The version of that release, as the agent says.';
COMMENT ON COLUMN agent_updates.platform IS 'The platform whose program the agent needs.';
COMMENT ON COLUMN agent_updates.reason IS 'Why it refused the release or is unable to take it.';
COMMENT ON COLUMN agent_updates.log_tail IS 'The end of the log of a version that it refused.';
COMMENT ON COLUMN agent_updates.since IS 'When the step or the release last changed.';
COMMENT ON COLUMN agent_updates.offered_serial IS 'The release that the service has offered it last; null before the first.';
COMMENT ON COLUMN agent_updates.offered_at IS 'When it was first offered that one.';

-- ---- Who is meant ----------------------------------------------------------------------------------
-- The one home of membership. A place depends on agent and release alone: it is the same on every server, needs no list, and differs from
-- release to release, so that the same hosts are not always the first.
CREATE FUNCTION rollout_place(agent uuid, serial bigint) RETURNS integer IMMUTABLE LANGUAGE sql AS $$
    SELECT (('x' || substr(md5(agent::text || '/' || serial::text), 1, 8))::bit(32)::bigint % 1000000)::integer;
$$;
COMMENT ON FUNCTION rollout_place IS 'The place of an agent in a rollout: a hash, 0 to 999,999. The release is offered to the places below the threshold.';

-- An agent that had a newer release, or that runs this version without having been offered it, is not meant. One that was offered it and
-- is back with the version, before its word of the update is stored, still is: otherwise a stage of some hosts would take another one.
CREATE FUNCTION rollout_members(wanted bigint, among uuid[])
    RETURNS TABLE (agent_id uuid, place integer) STABLE LANGUAGE sql AS $$
    SELECT a.id, rollout_place(a.id, r.serial)
      FROM rollouts r
      JOIN agent_releases e ON e.serial = r.serial
      JOIN hosts h ON h.labels @> r.selector AND h.retired_at IS NULL
      JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      JOIN agent_updates u ON u.agent_id = a.id
     WHERE r.serial = wanted AND (among IS NULL OR a.id = ANY (among)) AND u.platform = ANY (e.platforms)
       AND (u.serial = r.serial OR (u.serial < r.serial AND (a.version <> e.version OR u.offered_serial = r.serial)
                                                 AND NOT (u.serial = 0 AND u.step = 'unable')))
       AND (r.undoes IS NULL OR u.serial IN (r.undoes, r.serial))
       AND NOT EXISTS (SELECT FROM rollout_skips k WHERE k.serial = r.serial AND k.host_id = h.id);
$$;
COMMENT ON FUNCTION rollout_members IS 'The agents that a rollout is about, with their places: all, or those among some.';

-- The newest of several releases is offered. One that its agent has approved or refused is not offered again.
CREATE FUNCTION updates_offer(agents uuid[], serials bigint[])
    RETURNS TABLE (agent_id uuid, serial bigint) LANGUAGE plpgsql SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY
    WITH due AS (
        SELECT DISTINCT ON (m.agent_id) m.agent_id, r.serial
          FROM rollouts r CROSS JOIN LATERAL rollout_members(r.serial, updates_offer.agents) m
         WHERE r.serial = ANY (serials) AND r.state IN ('running', 'done') AND m.place < r.threshold
         ORDER BY m.agent_id, r.serial DESC),
    wanted AS (
        SELECT due.agent_id, due.serial, u.offered_serial FROM due JOIN agent_updates u ON u.agent_id = due.agent_id
         WHERE NOT (u.serial = due.serial AND u.step IN ('approved', 'refused'))),
    noted AS (
        UPDATE agent_updates u SET offered_serial = wanted.serial, offered_at = clock_timestamp()
          FROM wanted WHERE u.agent_id = wanted.agent_id AND wanted.offered_serial IS DISTINCT FROM wanted.serial)
    SELECT wanted.agent_id, wanted.serial FROM wanted;
END $$;
COMMENT ON FUNCTION updates_offer IS 'Which of these agents are to be offered which of these releases now; notes that they are.';

-- ---- What people decide ----------------------------------------------------------------------------
CREATE FUNCTION rollout_note(serial bigint, kind text, actor text, what text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO rollout_events (serial, kind, actor, text) VALUES (serial, kind, left(coalesce(actor, ''), 255), left(coalesce(what, ''), 500));
$$;
COMMENT ON FUNCTION rollout_note IS 'Records what happened to a release or its rollout.';

CREATE FUNCTION add_agent_release(serial bigint, version text, platforms text[], manifest bytea, signature bytea, actor text)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE known agent_releases;
BEGIN
    INSERT INTO agent_releases (serial, version, platforms, manifest, signature, added_by)
    VALUES (add_agent_release.serial, add_agent_release.version, add_agent_release.platforms, add_agent_release.manifest,
            add_agent_release.signature, left(actor, 255))
        ON CONFLICT ON CONSTRAINT agent_releases_pkey DO NOTHING;
    IF FOUND THEN
        PERFORM rollout_note(serial, 'release added'::text, actor, version);
        RETURN;
    END IF;
    SELECT * INTO known FROM agent_releases e WHERE e.serial = add_agent_release.serial;
    IF known.manifest <> add_agent_release.manifest THEN
        RAISE EXCEPTION 'another release has the serial %', serial USING ERRCODE = 'SV409', HINT = 'sign this one with a higher serial'::text;
    END IF;
END $$;
COMMENT ON FUNCTION add_agent_release IS 'Adds a signed manifest. Adding the same one again changes nothing; another one of the same serial is refused.';

CREATE FUNCTION start_rollout(serial bigint, selector jsonb, stages text[], soak_seconds integer, hours text, undoes bigint, actor text,
                              reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM agent_releases e WHERE e.serial = start_rollout.serial) THEN
        RAISE EXCEPTION 'there is no release with the serial %', serial USING ERRCODE = 'SV404';
    END IF;
    INSERT INTO rollouts (serial, selector, stages, soak_seconds, hours, undoes, created_by)
    VALUES (start_rollout.serial, start_rollout.selector, start_rollout.stages, start_rollout.soak_seconds, start_rollout.hours,
            start_rollout.undoes, left(actor, 255))
        ON CONFLICT ON CONSTRAINT rollouts_pkey DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the release % has a rollout already', serial USING ERRCODE = 'SV409', HINT = 'a release is rolled out once'::text;
    END IF;
    PERFORM rollout_note(serial, 'rollout started'::text, actor,
        pg_catalog.concat_ws(', '::text, selector, pg_catalog.array_to_string(stages, ' '::text), pg_catalog.concat('soak '::text, soak_seconds, ' s'::text),
                             nullif(hours, ''::text), CASE WHEN undoes IS NOT NULL THEN pg_catalog.concat('undoes '::text, undoes) END,
                             nullif(reason, ''::text)));
END $$;
COMMENT ON FUNCTION start_rollout IS 'Starts the rollout of a release for hosts with these labels. With undoes it is for agents that have had that release.';

CREATE FUNCTION set_rollout(serial bigint, wanted text, actor text, reason text)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE present rollouts;
BEGIN
    IF coalesce(wanted, ''::text) NOT IN ('running'::text, 'paused'::text) THEN
        RAISE EXCEPTION 'a person sets a rollout to running or paused' USING ERRCODE = 'SV400';
    END IF;
    SELECT * INTO present FROM rollouts r WHERE r.serial = set_rollout.serial FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no rollout of the release %', serial USING ERRCODE = 'SV404';
    END IF;
    IF present.state = wanted OR (present.state = 'done' AND wanted = 'running'::text) THEN
        RAISE EXCEPTION 'the rollout is %', present.state USING ERRCODE = 'SV409';
    END IF;
    UPDATE rollouts r SET state = wanted, reason = left(coalesce(set_rollout.reason, ''::text), 250), stage_since = clock_timestamp()
     WHERE r.serial = set_rollout.serial;
    PERFORM rollout_note(serial, CASE wanted WHEN 'paused'::text THEN 'rollout paused'::text ELSE 'rollout resumed'::text END, actor, reason);
END $$;
COMMENT ON FUNCTION set_rollout IS 'Pauses a rollout, or resumes it in its stage, whose soak begins again. A paused one offers nothing; agents that have the release keep it.';

CREATE FUNCTION skip_host(serial bigint, host uuid, actor text, reason text DEFAULT NULL)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE hostname text;
BEGIN
    SELECT h.hostname INTO hostname FROM hosts h WHERE h.id = host;
    IF NOT FOUND OR NOT EXISTS (SELECT FROM rollouts r WHERE r.serial = skip_host.serial) THEN
        RAISE EXCEPTION 'there is no such host or rollout' USING ERRCODE = 'SV404';
    END IF;
    INSERT INTO rollout_skips (serial, host_id) VALUES (skip_host.serial, host) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM rollout_note(serial, 'host skipped'::text, actor, pg_catalog.concat_ws(': '::text, pg_catalog.concat_ws(' '::text, hostname, host), nullif(reason, ''::text)));
    END IF;
END $$;
COMMENT ON FUNCTION skip_host IS 'Leaves a host out of a rollout: it is neither offered the release any more nor counted.';

REVOKE EXECUTE ON FUNCTION
    rollout_place, rollout_members, updates_offer, rollout_note, add_agent_release, start_rollout, set_rollout, skip_host FROM PUBLIC;
