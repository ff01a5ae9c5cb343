-- The common registration, many at once: a new key on a machine that nobody has, with a usable token.
--
-- A registration used to be a dozen statements, each planned again and committed alone. This function registers a
-- batch of them. It decides nothing that is hard. A registration whose key or machine is known, or is being
-- registered by another transaction, is left out of the result. The caller then registers it step by step, where the
-- rules for known keys, reinstallations and clones are.
--
-- Locks. Every registration holds advisory locks on its key and on its machine's identifiers. This function takes the
-- same locks, but waits for none: a registration whose lock is taken is left out. So no registration delays the others
-- of its batch. The rows of the tokens are locked first, in the order of their ids, because their uses are counted for
-- the whole batch. A registration in steps locks its token last, while it holds advisory locks. No cycle can arise,
-- because the holder of a token's row waits for no advisory lock.
--
-- The locks are taken in one statement, and key and machine are looked for in the next. A statement sees what was
-- committed before it began. In one statement, a registration that commits just before its lock is taken here would not
-- be seen, and its machine would get a second host.
--
-- The table of locks has room for max_locks_per_transaction * max_connections locks of all sessions (6,400 by default),
-- and a machine may have 67 identifiers. So a batch takes at most 1,024 advisory locks. Usually 128 newcomers take
-- fewer; the registrations beyond are left out. Batches with one token run one after another, because they lock its row first.
--
-- Plans. A session plans the statements of a function once. If the tables are still empty then, the planner chooses
-- sequential scans, and a crowd that registers in a new database would be slower with every host. All statements here,
-- and those of the triggers, find single rows by an index, so other plans are switched off. A plan that cannot avoid a
-- sequential scan then looks so expensive that PostgreSQL would compile it, so that is switched off too.

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
        SELECT given.*, t.id AS token_id, t.auto_approve, t.labels, t.max_uses - t.uses AS uses_left,
               row_number() OVER (PARTITION BY t.id ORDER BY given.position) AS use,
               sum(cardinality(given.locks)) OVER (ORDER BY given.position) AS locks_needed
          FROM ROWS FROM (unnest(keys), unnest(tokens), jsonb_to_recordset(details) AS (
                   locks bigint[], version text, capabilities text[], facts jsonb))
               WITH ORDINALITY AS given(key, token, locks, version, capabilities, facts, position)
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
        INSERT INTO agents (key, host_id, token_id, version, capabilities, facts, status, decided_by, decided_at)
        VALUES (wanted.key, registrations_admit.host_id, wanted.token_id, wanted.version, wanted.capabilities, wanted.facts,
                registrations_admit.status, CASE WHEN wanted.auto_approve THEN 'token ' || wanted.token_id END,
                CASE WHEN wanted.auto_approve THEN now() END)
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

COMMENT ON FUNCTION registrations_admit IS
    'Registers new keys on unknown machines, many at once. details has locks, version, capabilities and facts of each. Registrations that need a closer look, or whose token is not usable, are not in the result.';

REVOKE EXECUTE ON FUNCTION registrations_admit(bytea[], bytea[], jsonb) FROM PUBLIC;
