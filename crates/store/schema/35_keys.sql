-- Keys of agents beside the present one: the next, whose first use makes it the present one, and those that were retired.
--
-- A key belongs to one agent for ever. It is in agents.key or in agent_keys, never in both: agent_keys_store and registrations hold an
-- advisory lock on the key while they look and write, and a promotion exchanges the two under the lock of the agent's state.
CREATE TABLE agent_keys (
    key        bytea       PRIMARY KEY CHECK (octet_length(key) = 32),
    agent_id   uuid        NOT NULL REFERENCES agents ON DELETE CASCADE,
    since      timestamptz NOT NULL DEFAULT now(),
    retired_at timestamptz,
    used_at    timestamptz,
    used_from  inet
);
CREATE UNIQUE INDEX agent_keys_next ON agent_keys (agent_id) WHERE retired_at IS NULL;
CREATE INDEX agent_keys_agent ON agent_keys (agent_id, retired_at);
COMMENT ON TABLE agent_keys IS 'Keys of agents beside agents.key: at most one next key of each agent, and its newest 32 retired ones.';
COMMENT ON COLUMN agent_keys.key IS 'SHA-256 of the public key (SPKI).';
COMMENT ON COLUMN agent_keys.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_keys.since IS 'When a next key was stored; when a retired key had become the present one.';
COMMENT ON COLUMN agent_keys.retired_at IS 'When another key took its place; null: it is the next key.';
COMMENT ON COLUMN agent_keys.used_at IS 'When somebody last tried to use it after it was retired, to within ten minutes: a copy of the agent, or a restored disk.';
COMMENT ON COLUMN agent_keys.used_from IS 'The address that this came from.';

CREATE FUNCTION agent_key_state(agent uuid, given bytea) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN k.retired_at IS NULL THEN 'next' ELSE 'retired' END FROM agent_keys k WHERE k.key = given AND k.agent_id = agent;
$$;
COMMENT ON FUNCTION agent_key_state IS 'Whether a key is the next one of an agent, or retired; null if it is neither.';

-- The state of each agent is locked, so that no key is replaced while its first use promotes it. An agent whose state is locked, or that
-- has a newer stream, is not in the result.
CREATE FUNCTION agent_keys_store(agents uuid[], epochs bigint[], keys bytea[], locks bigint[])
    RETURNS TABLE (agent_id uuid, refused text) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE o record;
BEGIN
    PERFORM pg_advisory_xact_lock(given.lock) FROM unnest(locks) AS given(lock);
    FOR o IN SELECT * FROM unnest(agents, epochs, keys) AS given(agent_id, epoch, key) ORDER BY given.agent_id
    LOOP
        agent_id := o.agent_id;
        PERFORM FROM agent_state s WHERE s.agent_id = o.agent_id AND s.epoch = o.epoch FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        refused := CASE
            WHEN NOT EXISTS (SELECT FROM agents a WHERE a.id = o.agent_id AND a.status = 'active') THEN 'this agent is not active'
            WHEN EXISTS (SELECT FROM agents a WHERE a.key = o.key)
              OR EXISTS (SELECT FROM agent_keys k WHERE k.key = o.key AND (k.retired_at IS NOT NULL OR k.agent_id <> o.agent_id))
            THEN 'this key is known already'
            ELSE '' END;
        IF refused = '' THEN
            DELETE FROM agent_keys k WHERE k.agent_id = o.agent_id AND k.retired_at IS NULL AND k.key <> o.key;
            INSERT INTO agent_keys (key, agent_id) VALUES (o.key, o.agent_id)
                ON CONFLICT ON CONSTRAINT agent_keys_pkey DO UPDATE SET since = now();
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION agent_keys_store IS 'Stores the next keys of agents, many at once: each replaces an earlier next key. Returns why a key was refused, or an empty text. locks are advisory locks of the keys, sorted.';

CREATE FUNCTION agent_key_promote(agent agents, given bytea, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_keys k SET key = agent.key, since = agent.key_since, retired_at = now() WHERE k.key = given;
    UPDATE agents a SET key = given, key_since = now(), key_change_at = NULL WHERE a.id = agent.id;
    DELETE FROM agent_keys k
     WHERE k.key IN (SELECT old.key FROM agent_keys old WHERE old.agent_id = agent.id AND old.retired_at IS NOT NULL
                      ORDER BY old.retired_at DESC OFFSET 32);
    INSERT INTO agent_events (agent_id, kind, reason, address)
    VALUES (agent.id, 'key changed', pg_catalog.format('key %s instead of %s', left(encode(given, 'hex'), 16), left(encode(agent.key, 'hex'), 16)), seen_from);
END $$;
COMMENT ON FUNCTION agent_key_promote IS 'Makes the next key of an agent its present one, and retires that. The caller has locked the agent''s state.';

CREATE FUNCTION agent_keys_used(keys bytea[], addresses inet[]) RETURNS void LANGUAGE sql AS $$
    WITH used AS (
        UPDATE agent_keys k SET used_at = now(), used_from = given.address
          FROM (SELECT DISTINCT ON (key) key, address FROM unnest(keys, addresses) AS tried(key, address) ORDER BY key) given
         WHERE k.key = given.key AND k.retired_at IS NOT NULL AND NOT happened_within(k.used_at, 600)
        RETURNING k.agent_id, k.key, k.used_from)
    INSERT INTO agent_events (agent_id, kind, reason, address)
    SELECT used.agent_id, 'retired key',
           'a copy of this agent, or a restored disk, used the retired key ' || left(encode(used.key, 'hex'), 16), used.used_from
      FROM used;
$$;
COMMENT ON FUNCTION agent_keys_used IS 'Records that retired keys were used: at most one event of a key in ten minutes, however often a copy tries.';

REVOKE EXECUTE ON FUNCTION agent_key_state, agent_keys_store, agent_key_promote, agent_keys_used FROM PUBLIC;
