-- A quick restart is an outage too.
--
-- An instance that was killed and started again found its own old lease live, so nothing paused the sweep: its agents counted as offline
-- 25 seconds later, whether or not they could have come back. A lost instance gets the short grace only if another instance was live all
-- the time, from before its last renewal until now. Otherwise its agents may have had no instance to go to, and get the grace after an outage.

CREATE FUNCTION outage_grace() RETURNS interval IMMUTABLE LANGUAGE sql AS $$ SELECT interval '150 seconds' $$;
COMMENT ON FUNCTION outage_grace IS 'How long agents may take to come back after all instances were away. The service has the same time (Timing::outage_grace).';

CREATE OR REPLACE FUNCTION instances_lapsed(grace double precision) RETURNS SETOF uuid STABLE LANGUAGE sql AS $$
    SELECT lost.id FROM ingest_instances lost
     WHERE NOT lost.fenced AND lost.stopped_at IS NULL AND lost.expires_at < now() - make_interval(secs => grace)
       AND (lost.expires_at < now() - outage_grace()
            OR EXISTS (SELECT FROM ingest_instances i
                        WHERE NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now() AND i.started_at <= lost.renewed_at));
$$;
COMMENT ON FUNCTION instances_lapsed IS
    'Instances that are not fenced yet and whose lease expired longer ago than the grace, or than outage_grace if no other one was live all the time.';

REVOKE EXECUTE ON FUNCTION outage_grace FROM PUBLIC;
