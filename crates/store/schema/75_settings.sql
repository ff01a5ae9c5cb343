-- Settings of agents by label: the rules that people make, what they come to for each agent, and what agents say that they run.

CREATE FUNCTION settings_number(value jsonb, lowest bigint, highest bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE WHEN value::text ~ '^[0-9]{1,15}$'::text THEN value::text::bigint BETWEEN lowest AND highest ELSE false END, false);
$$;
COMMENT ON FUNCTION settings_number IS 'Whether this is a whole number within bounds.';

CREATE FUNCTION settings_texts(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(value) <> 'array' OR octet_length(value::text) > 400 OR jsonb_array_length(value) > 32 THEN false
           ELSE NOT EXISTS (
               SELECT FROM jsonb_array_elements(value) AS e(one)
                WHERE jsonb_typeof(e.one) <> 'string' OR (e.one #>> '{}'::text[]) = '' OR octet_length(e.one #>> '{}'::text[]) > 128
                   OR (e.one #>> '{}'::text[]) ~ '[\u0001-\u001f\u007f-\u009f,]'::text)
           END;
$$;
COMMENT ON FUNCTION settings_texts IS 'Whether this is a list of at most 32 texts, of 128 bytes each and 400 together, so that all settings of an agent take less than 2 KiB.';

-- The one home of what a rule may set. No address, trust anchor, key or folder is ever among the fields.
CREATE FUNCTION settings_problem(settings jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(settings) IS DISTINCT FROM 'object' OR settings = '{}' THEN
        RETURN 'a rule sets at least one field';
    END IF;
    RETURN (
        SELECT CASE
            WHEN field.key = 'interval' THEN
                CASE WHEN NOT settings_number(field.value, 5::bigint, 3600::bigint) THEN 'interval is 5 s to 1 h' END
            WHEN field.key = 'left_out' AND NOT field.value <@ '["disks", "interfaces", "block_devices", "pressure", "cpu_steal_ms"]'::jsonb THEN
                'left_out names some of disks, interfaces, block_devices, pressure and cpu_steal_ms'
            WHEN field.key IN ('left_out', 'ignored_mounts', 'ignored_file_systems', 'ignored_interfaces') THEN
                CASE WHEN NOT settings_texts(field.value)
                     THEN pg_catalog.format('%s is a list of at most 32 texts without commas and control characters, of 128 bytes each and 400 together', field.key) END
            WHEN field.key = 'log' THEN
                CASE WHEN jsonb_typeof(field.value) <> 'object' OR (field.value - 'level'::text - 'until'::text) <> '{}'
                       OR coalesce(field.value ->> 'level'::text, '') NOT IN ('error', 'warn', 'info', 'debug', 'trace')
                       OR NOT settings_number(field.value -> 'until'::text, 1::bigint, 100000000000::bigint)
                     THEN 'log is error, warn, info, debug or trace, with an end' END
            WHEN field.key = 'spool_bytes' THEN
                CASE WHEN NOT settings_number(field.value, 1048576::bigint, 4294967296::bigint) THEN 'spool_bytes is 1 MiB to 4 GiB' END
            WHEN field.key = 'update' THEN
                CASE WHEN jsonb_typeof(field.value) <> 'object' OR (field.value - 'on'::text - 'hours'::text) <> '{}'
                       OR jsonb_typeof(field.value -> 'on'::text) IS DISTINCT FROM 'boolean'
                       OR jsonb_typeof(field.value -> 'hours'::text) IS DISTINCT FROM 'string'
                       OR (field.value ->> 'hours'::text) !~ '^([a-z]{3}-[a-z]{3} [0-9]{2}:[0-9]{2}-[0-9]{2}:[0-9]{2})?$'::text
                     THEN 'update is on or off, with hours such as mon-fri 08:00-16:00, in UTC' END
            ELSE pg_catalog.format('there is no field %L', left(field.key, 80)) END
          FROM jsonb_each(settings) AS field ORDER BY 1 LIMIT 1);
END $$;
COMMENT ON FUNCTION settings_problem IS 'Why a rule cannot set this; null if it can: an object of known fields within their bounds.';

CREATE TABLE settings_rules (
    id         bigint      PRIMARY KEY,
    priority   integer     NOT NULL CHECK (priority BETWEEN 0 AND 1000),
    selector   jsonb       NOT NULL CHECK (labels_problem(selector) IS NULL),
    patch      jsonb       NOT NULL CHECK (settings_problem(patch) IS NULL),
    share      integer     NOT NULL CHECK (share BETWEEN 1 AND 100),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text        NOT NULL CHECK (octet_length(created_by) <= 255),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by text        NOT NULL CHECK (octet_length(changed_by) <= 255)
);
COMMENT ON TABLE settings_rules IS 'What operators set for the agents of hosts with some labels.';
COMMENT ON COLUMN settings_rules.id IS 'The number of the rule: one above the highest, so that previews use up none.';
COMMENT ON COLUMN settings_rules.priority IS 'Of two rules that set a field, the one with the higher priority decides, of two with the same the newer one.';
COMMENT ON COLUMN settings_rules.selector IS 'The labels of the hosts that are meant; without labels, all.';
COMMENT ON COLUMN settings_rules.patch IS 'The fields that it sets: see settings_problem. Times are in seconds, the end of a log level in seconds since 1970.';
COMMENT ON COLUMN settings_rules.share IS 'The percentage of those hosts for which it is in force. A larger share has all hosts of a smaller one.';
COMMENT ON COLUMN settings_rules.created_at IS 'When it was made.';
COMMENT ON COLUMN settings_rules.created_by IS 'Who made it, as they said.';
COMMENT ON COLUMN settings_rules.changed_at IS 'When it was made or last changed.';
COMMENT ON COLUMN settings_rules.changed_by IS 'Who made or last changed it, as they said.';

CREATE TABLE agent_settings (
    agent_id      uuid        PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    running_hash  bytea       NOT NULL CHECK (octet_length(running_hash) <= 32),
    received_hash bytea       NOT NULL CHECK (octet_length(received_hash) <= 32),
    refused       jsonb       NOT NULL CHECK (jsonb_typeof(refused) = 'array' AND octet_length(refused::text) <= 16384),
    since         timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE agent_settings IS 'Which settings each agent runs, as it said last. Agents that never said anything of settings have no row, and are sent none.';
COMMENT ON COLUMN agent_settings.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_settings.running_hash IS 'The hash of the settings that it runs with, but for refused fields. Empty: its own configuration alone.';
COMMENT ON COLUMN agent_settings.received_hash IS 'The hash of the settings that it has received last; empty before the first.';
COMMENT ON COLUMN agent_settings.refused IS 'The fields that it does not take: [{"field": "interval", "reason": "agent.toml sets it"}].';
COMMENT ON COLUMN agent_settings.since IS 'When it first said so.';

-- A rule has a place for each agent by the hash function of rollouts. The sign keeps rule 7 from beginning with the hosts of release 7.
-- Agents come first: PostgreSQL would otherwise look up all hosts of each rule's labels for a few agents.
CREATE FUNCTION settings_members(among uuid[]) RETURNS TABLE (agent_id uuid, rule bigint, priority integer, patch jsonb) STABLE LANGUAGE sql AS $$
    WITH meant AS MATERIALIZED (
        SELECT a.id, h.labels FROM agents a JOIN hosts h ON h.id = a.host_id AND h.retired_at IS NULL
         WHERE a.status = 'active' AND (among IS NULL OR a.id = ANY (among)))
    SELECT m.id, r.id, r.priority, r.patch
      FROM meant m JOIN settings_rules r ON m.labels @> r.selector
     WHERE r.share = 100 OR rollout_place(m.id, -r.id) < r.share * 10000;
$$;
COMMENT ON FUNCTION settings_members IS 'The rules that are in force for each agent: of all agents, or of some.';

-- Of equal keys the last one stays, so the order of the aggregate is the order of the rules. The text of a jsonb is canonical.
CREATE FUNCTION settings_effective(agents uuid[])
    RETURNS TABLE (agent_id uuid, settings jsonb, rules jsonb, hash bytea) STABLE LANGUAGE sql AS $$
    SELECT e.id, e.settings, e.rules, sha256(convert_to(e.settings::text, 'UTF8'))
      FROM (SELECT a.id, coalesce(folded.settings, '{}') AS settings, coalesce(folded.rules, '{}') AS rules
              FROM unnest(agents) AS a(id)
              LEFT JOIN (
                   SELECT m.agent_id, jsonb_object_agg(f.key, f.value ORDER BY m.priority, m.rule) AS settings,
                          jsonb_object_agg(f.key, m.rule ORDER BY m.priority, m.rule) AS rules
                     FROM settings_members(agents) m CROSS JOIN LATERAL jsonb_each(m.patch) f
                    WHERE f.key <> 'log' OR (f.value ->> 'until')::bigint > extract(epoch FROM now())
                    GROUP BY m.agent_id) folded ON folded.agent_id = a.id) e;
$$;
COMMENT ON FUNCTION settings_effective IS 'What the rules come to for each of these agents, which rule set which field, and the SHA-256 of the settings'' text. A log level that has ended sets nothing.';

-- ---- What people decide ----------------------------------------------------------------------------
CREATE FUNCTION set_settings_rule(rule bigint, priority integer, selector jsonb, patch jsonb, share integer, actor text, reason text)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    problem text := coalesce(labels_problem(selector), settings_problem(patch));
    done    bigint;
BEGIN
    IF problem IS NULL AND (priority NOT BETWEEN 0 AND 1000 OR share NOT BETWEEN 1 AND 100) THEN
        problem := 'a priority is 0 to 1000, a share 1 to 100';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'SV400';
    END IF;
    LOCK TABLE settings_rules IN SHARE ROW EXCLUSIVE MODE; -- One change at a time: it takes a number, and is counted.
    IF rule IS NULL THEN
        IF (SELECT count(*) FROM settings_rules) >= 1000 THEN
            RAISE EXCEPTION 'there are 1000 rules' USING ERRCODE = 'SV409', HINT = 'remove one first'::text;
        END IF;
        INSERT INTO settings_rules AS r (id, priority, selector, patch, share, created_by, changed_by)
        VALUES ((SELECT coalesce(max(s.id), 0) + 1 FROM settings_rules s), set_settings_rule.priority, set_settings_rule.selector, set_settings_rule.patch, set_settings_rule.share,
                left(coalesce(actor, ''::text), 255), left(coalesce(actor, ''::text), 255)) RETURNING r.id INTO done;
    ELSE
        UPDATE settings_rules r
           SET priority = set_settings_rule.priority, selector = set_settings_rule.selector, patch = set_settings_rule.patch,
               share = set_settings_rule.share, changed_at = clock_timestamp(), changed_by = left(coalesce(actor, ''::text), 255)
         WHERE r.id = rule RETURNING r.id INTO done;
        IF done IS NULL THEN
            RAISE EXCEPTION 'there is no rule %', rule USING ERRCODE = 'SV404';
        END IF;
    END IF;
    PERFORM add_people_event(
        CASE WHEN rule IS NULL THEN 'settings added'::text ELSE 'settings changed'::text END, pg_catalog.concat('rule '::text, done), actor,
        NULL::inet, 'done'::text,
        pg_catalog.concat_ws('; '::text, nullif(reason, ''::text), pg_catalog.concat('priority '::text, priority),
                             pg_catalog.concat(share, ' %'::text), selector, patch));
    RETURN done;
END $$;
COMMENT ON FUNCTION set_settings_rule IS 'Makes a rule (rule is null) or changes one, and returns its number.';

CREATE FUNCTION remove_settings_rule(rule bigint, actor text, reason text)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE gone settings_rules;
BEGIN
    DELETE FROM settings_rules r WHERE r.id = rule RETURNING r.* INTO gone;
    IF gone.id IS NULL THEN
        RAISE EXCEPTION 'there is no rule %', rule USING ERRCODE = 'SV404';
    END IF;
    PERFORM add_people_event('settings removed'::text, pg_catalog.concat('rule '::text, rule), actor, NULL::inet, 'done'::text,
                             pg_catalog.concat_ws('; '::text, nullif(reason, ''::text), gone.selector, gone.patch));
END $$;
COMMENT ON FUNCTION remove_settings_rule IS 'Removes a rule: its agents go back to what the others set.';

REVOKE EXECUTE ON FUNCTION
    settings_number, settings_texts, settings_problem, settings_members, settings_effective, set_settings_rule, remove_settings_rule FROM PUBLIC;
