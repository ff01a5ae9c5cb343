-- Registration: whether two sets of facts are of one machine, what a host takes from its agents, and the common registration, many at once.
--
-- A host takes facts, identifiers and labels from the agents that are admitted, and from no others. The identifiers of two machines are
-- never merged: both would count as the same one for ever.

-- RegistrationTx::host_match searches a host by this rule; store/tests/it/same_machine.rs compares the two.
CREATE FUNCTION same_machine(host uuid, identifiers jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT bool_or(identifiers -> known.kind ? known.value)
      FROM host_identifiers known
     WHERE known.host_id = host
       AND known.kind = (
           SELECT strongest.kind FROM host_identifiers strongest
            WHERE strongest.host_id = host AND identifiers ? strongest.kind
            ORDER BY pg_catalog.array_position(ARRAY['cloud', 'hardware', 'machine', 'network'], strongest.kind) LIMIT 1);
$$;
COMMENT ON FUNCTION same_machine IS 'Whether a host''s known identifiers and these are of one machine: the strongest kind that both carry decides. Null where they have none in common.';

-- At most one event a minute, however often an agent changes its facts.
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
COMMENT ON FUNCTION machine_changed IS 'Records that an agent came from another machine, and removes the identifiers of the old one from the host.';

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

-- No registration fails because of labels: a host that came by tokens with too many of them keeps those that it has.
CREATE FUNCTION host_takes_labels(host uuid, token uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    joined  jsonb;
    problem text;
BEGIN
    SELECT h.labels || t.labels INTO joined FROM hosts h, enrolment_tokens t
     WHERE h.id = host AND t.id = token AND NOT h.labels @> t.labels FOR NO KEY UPDATE OF h;
    problem := CASE WHEN FOUND THEN labels_problem(joined) END;
    IF problem IS NOT NULL THEN
        INSERT INTO host_events (host_id, kind, actor, text)
        VALUES (host, 'labels', 'token '::text || token::text, 'the token''s labels were not added: '::text || problem);
    ELSIF joined IS NOT NULL THEN
        UPDATE hosts h SET labels = joined WHERE h.id = host;
    END IF;
END $$;
COMMENT ON FUNCTION host_takes_labels IS 'Gives a host the labels of a token, if they are not too many with those that it has.';

-- The facts at a registration may be of another machine than those of the registration that found the host.
CREATE FUNCTION agent_admitted(agent agents) RETURNS void LANGUAGE plpgsql AS $$
DECLARE was_retired boolean;
BEGIN
    SELECT h.retired_at IS NOT NULL INTO was_retired FROM hosts h WHERE h.id = agent.host_id FOR NO KEY UPDATE;
    IF same_machine(agent.host_id, agent.facts -> 'identifiers'::text) = false THEN
        PERFORM machine_changed(agent.id, agent.host_id, agent.facts -> 'identifiers'::text);
    END IF;
    PERFORM host_takes_facts(agent.host_id, agent.facts);
    PERFORM host_takes_labels(agent.host_id, agent.token_id);
    IF was_retired THEN
        UPDATE hosts h SET retired_at = NULL WHERE h.id = agent.host_id;
        INSERT INTO agent_events (agent_id, kind, reason)
        VALUES (agent.id, 'host returned', 'the host was retired and is in service again');
    END IF;
END $$;
COMMENT ON FUNCTION agent_admitted IS 'What a host takes from a pending agent once it is admitted: facts, identifiers, the labels of its token. A retired host returns to service.';

-- A new key on a machine that nobody has, with a usable token. A registration whose key or machine is known, or is being registered by
-- another transaction, is left out. The caller registers it step by step, where the rules for known keys, reinstallations and clones are.
--
-- Locks. Every registration holds advisory locks on its key and on its machine's identifiers. This function waits for none of them, so no
-- registration delays the others of its batch. The rows of the tokens are locked first, in the order of their ids, because their uses are
-- counted for the whole batch. A registration in steps locks its token last. No cycle can arise, because the holder of a token's row waits
-- for no advisory lock. The locks are taken in one statement, and key and machine are looked for in the next: a statement sees what was
-- committed before it began, so in one statement a registration that commits just before its lock is taken here would not be seen.
-- PostgreSQL has room for max_locks_per_transaction * max_connections locks (6,400 by default), and a machine may have 67 identifiers.
--
-- Plans. A session plans the statements of a function once. If the tables are still empty then, the planner chooses sequential scans, and
-- a crowd that registers in a new database would be slower with every host. All statements here and of the triggers find single rows by an
-- index, so other plans are switched off. A plan that cannot avoid a sequential scan then looks so expensive that it would be compiled.
CREATE FUNCTION registrations_admit(keys bytea[], tokens bytea[], details jsonb)
    RETURNS TABLE (number bigint, agent_id uuid, host_id uuid, status text) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    most_locks CONSTANT integer := 1024;
    wanted record;
    spent  uuid[] := '{}';
BEGIN
    PERFORM FROM enrolment_tokens t WHERE t.hash = ANY (tokens) ORDER BY t.id FOR NO KEY UPDATE;
    FOR wanted IN
        SELECT given.*, t.id AS token_id, enrolment_token_effect(t, NULL, NULL, 0) AS effect, t.labels, t.max_uses - t.uses AS uses_left,
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
            OR EXISTS (SELECT FROM agent_keys k WHERE k.key = wanted.key)
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
        status := CASE wanted.effect WHEN 'activate' THEN 'active' ELSE 'pending' END;
        INSERT INTO agents (key, host_id, token_id, version, capabilities, facts, status, decided_by, decided_at, registered_from)
        VALUES (wanted.key, registrations_admit.host_id, wanted.token_id, wanted.version, wanted.capabilities, wanted.facts,
                registrations_admit.status, CASE wanted.effect WHEN 'activate' THEN 'token ' || wanted.token_id END,
                CASE wanted.effect WHEN 'activate' THEN now() END, wanted.address)
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
COMMENT ON FUNCTION registrations_admit IS 'Registers new keys on unknown machines, many at once. details has locks, version, capabilities, facts and address of each. Registrations that need a closer look, or whose token is not usable, are not in the result.';

REVOKE EXECUTE ON FUNCTION same_machine, machine_changed, host_takes_facts, host_takes_labels, agent_admitted, registrations_admit FROM PUBLIC;
