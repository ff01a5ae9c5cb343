-- What every instance asks every few seconds, with plans that its session keeps.
--
-- Statements are not prepared, because a pooler in transaction mode does not keep them: the renewal of a lease and the digest of the
-- sessions were parsed and planned at every call. As functions they are planned once for each connection. A renewal was also three round
-- trips; it is one now.

-- enable_seqscan = off makes the costs of plans so large that PostgreSQL sees no difference between them, and plans anew at every call.
ALTER FUNCTION sweep_is_due SET plan_cache_mode = force_generic_plan;

CREATE FUNCTION lease_renew(
    instance uuid, ttl double precision, new_load jsonb, sweep_grace double precision,
    OUT renewed boolean, OUT fenced boolean, OUT sweep boolean, OUT clock timestamptz)
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE ingest_instances i
       SET renewed_at = now(), expires_at = now() + make_interval(secs => ttl), load = new_load
     WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now();
    renewed := FOUND;
    fenced := NOT renewed AND EXISTS (SELECT FROM ingest_instances i WHERE i.id = instance AND i.fenced);
    sweep := renewed AND sweep_is_due(sweep_grace);
    clock := clock_timestamp();
END $$;

COMMENT ON FUNCTION lease_renew IS 'Renews a lease that has not expired. Says whether it is fenced otherwise, whether a sweep is due, and what time it is.';
REVOKE EXECUTE ON FUNCTION lease_renew FROM PUBLIC;

CREATE FUNCTION sessions_digest(instance uuid, OUT sessions bigint, OUT digest bigint, OUT doubtful bigint)
    STABLE LANGUAGE plpgsql AS $$
BEGIN
    SELECT count(*), coalesce(bit_xor(uuid_hash_extended(s.agent_id, s.epoch)), 0),
           count(*) FILTER (WHERE a.id IS NOT NULL OR s.contested_at > now() - interval '2 minutes')
      INTO sessions, digest, doubtful
      FROM agent_state s LEFT JOIN agents a ON a.id = s.agent_id AND a.status <> 'active'
     WHERE s.instance_id = instance;
END $$;

COMMENT ON FUNCTION sessions_digest IS 'The sessions of an instance: how many, the XOR of their hashes, and how many need a look.';
REVOKE EXECUTE ON FUNCTION sessions_digest FROM PUBLIC;
