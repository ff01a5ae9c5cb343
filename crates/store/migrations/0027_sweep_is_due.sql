-- Whether a sweep has anything to do.
--
-- Every instance swept every few seconds, and nearly every sweep found nothing, but cost a transaction that was written to disk:
-- it locks the sweeper's own row. The renewal of a lease asks this instead, and the instance sweeps if the answer is yes. The
-- conditions are those of sessions_sweep. Without the setting the planner may read all agents: it expects to find the first one
-- soon, and there is none.

CREATE FUNCTION sweep_is_due(grace double precision) RETURNS boolean LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM agent_state s WHERE s.online_until < now())
        OR EXISTS (SELECT FROM ingest_instances i
                    WHERE NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at < now() - make_interval(secs => grace)
                      AND coalesce(i.grace_until, '-infinity') < now())
        OR EXISTS (SELECT FROM agent_state s
                    WHERE s.instance_id = ANY (ARRAY (
                          SELECT i.id FROM ingest_instances i
                           WHERE i.expires_at > now() - interval '1 hour'
                             AND (i.fenced OR i.stopped_at < now() - make_interval(secs => grace)))))
        OR EXISTS (SELECT FROM ingest_instances i
                    WHERE i.expires_at < now() - interval '30 days' AND (i.fenced OR i.stopped_at IS NOT NULL));
END $$;

COMMENT ON FUNCTION sweep_is_due IS 'Whether sessions_sweep would fence an instance, end a session or delete an instance of long ago.';
REVOKE EXECUTE ON FUNCTION sweep_is_due FROM PUBLIC;
