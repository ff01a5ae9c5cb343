-- The instances of the service and their leases. Times are the database's clock. A time in the future proves that the clock was set back,
-- and nothing else.

-- Dropped at the end (60_readers.sql).
CREATE FUNCTION comments_copy(reader regclass, source regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE shown record;
BEGIN
    FOR shown IN
        SELECT attname, col_description(s.attrelid, s.attnum) AS text FROM pg_attribute r JOIN pg_attribute s USING (attname)
         WHERE r.attrelid = reader AND s.attrelid = source AND s.attnum > 0 AND col_description(r.attrelid, r.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', reader, shown.attname, shown.text);
    END LOOP;
END $$;
COMMENT ON FUNCTION comments_copy IS 'Gives the columns of a view that have no comment those of the columns of the same name in a table.';

CREATE TABLE ingest_instances (
    id           uuid PRIMARY KEY,
    kid          text        NOT NULL,
    hostname     text        NOT NULL,
    version      text        NOT NULL,
    grpc_address text        NOT NULL,
    http_address text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    renewed_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    fenced       boolean     NOT NULL DEFAULT false,
    stopped_at   timestamptz,
    swept        boolean     NOT NULL DEFAULT false,
    extra_kids   text[]      NOT NULL DEFAULT '{}',
    load         jsonb
);
-- Few rows live at any time, however many have ended.
CREATE INDEX ingest_instances_open ON ingest_instances (expires_at) WHERE NOT fenced AND stopped_at IS NULL;
CREATE INDEX ingest_instances_unswept ON ingest_instances (id) WHERE NOT swept;
COMMENT ON TABLE ingest_instances IS 'One row for each life of a service instance: its lease. An instance is live while it is neither fenced nor stopped and expires_at is in the future.';
COMMENT ON COLUMN ingest_instances.id IS 'The life of the instance; a restart, or being fenced, takes a new one.';
COMMENT ON COLUMN ingest_instances.kid IS 'RFC 7638 thumbprint of the key that the instance signs with. Two live instances with different ones accept each other''s (extra_kids).';
COMMENT ON COLUMN ingest_instances.hostname IS 'Name of the machine or container that the instance runs on.';
COMMENT ON COLUMN ingest_instances.version IS 'Version of the svc-ingest program.';
COMMENT ON COLUMN ingest_instances.grpc_address IS 'Address and port on which the instance serves agents.';
COMMENT ON COLUMN ingest_instances.http_address IS 'Address and port on which the instance serves health, JWKS and metrics.';
COMMENT ON COLUMN ingest_instances.started_at IS 'When the lease was first taken.';
COMMENT ON COLUMN ingest_instances.renewed_at IS 'When the lease was last renewed.';
COMMENT ON COLUMN ingest_instances.expires_at IS 'When the lease lapses unless it is renewed before.';
COMMENT ON COLUMN ingest_instances.fenced IS 'True once another instance declared this one lost; it cannot be renewed after that.';
COMMENT ON COLUMN ingest_instances.stopped_at IS 'When the instance gave its lease back at a clean stop; null while it runs or was lost.';
COMMENT ON COLUMN ingest_instances.swept IS 'True when the instance has been fenced or stopped for an hour and no session is recorded under its id any more.';
COMMENT ON COLUMN ingest_instances.extra_kids IS 'Thumbprints of the keys whose JWTs the instance publishes and accepts besides its own: those of a key rotation.';
COMMENT ON COLUMN ingest_instances.load IS 'How full the instance was at its last renewal: agents, processors, memory, queue, and when its TLS certificate expires.';

-- One row says until when nothing is swept after an outage, so a claim costs the same for every fleet.
CREATE TABLE sweep_pause (
    singleton boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    since     timestamptz NOT NULL,
    until     timestamptz NOT NULL
);
INSERT INTO sweep_pause (since, until) VALUES ('-infinity', '-infinity');
COMMENT ON TABLE sweep_pause IS 'One row: when nothing is swept, because agents could not reach the service before.';
COMMENT ON COLUMN sweep_pause.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN sweep_pause.since IS 'When an instance found that no other one was live. A time in the future is from before the clock was set back; the pause is over then.';
COMMENT ON COLUMN sweep_pause.until IS 'When sweeping may begin again.';

CREATE FUNCTION sweep_is_paused() RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM sweep_pause p WHERE p.since <= clock_timestamp() AND clock_timestamp() < p.until);
$$;
COMMENT ON FUNCTION sweep_is_paused IS 'Whether nothing may be swept now.';

CREATE FUNCTION lease_is_held(instance uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ingest_instances i
      WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now() FOR SHARE;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION lease_is_held IS 'Whether the instance holds a lease. It cannot be fenced before the transaction has ended.';

-- A live instance renews its lease within seconds, a dead one's expires.
CREATE FUNCTION leases_restart(ttl double precision) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE restarted integer;
BEGIN
    -- A row that is locked is being renewed, or its instance opens sessions: it is alive.
    UPDATE ingest_instances i SET renewed_at = now(), expires_at = now() + make_interval(secs => ttl)
     WHERE i.id = ANY (ARRAY (
           SELECT ahead.id FROM ingest_instances ahead
            WHERE NOT ahead.fenced AND ahead.stopped_at IS NULL AND ahead.renewed_at > clock_timestamp()
              FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS restarted = ROW_COUNT;
    RETURN restarted;
END $$;
COMMENT ON FUNCTION leases_restart IS 'Begins the term of leases again that were renewed in the future: the clock was set back. Returns how many.';

-- Statements are not prepared, because a pooler in transaction mode does not keep them. A function is planned once for each connection,
-- and a renewal with everything that belongs to it is one round trip.
CREATE FUNCTION lease_renew(
    instance uuid, ttl double precision, new_load jsonb, sweep_grace double precision,
    OUT renewed boolean, OUT fenced boolean, OUT sweep boolean, OUT clock timestamptz)
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM leases_restart(ttl);
    UPDATE ingest_instances i
       SET renewed_at = now(), expires_at = now() + make_interval(secs => ttl), load = new_load
     WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now();
    renewed := FOUND;
    fenced := NOT renewed AND EXISTS (SELECT FROM ingest_instances i WHERE i.id = instance AND i.fenced);
    sweep := renewed AND sweep_is_due(sweep_grace);
    clock := clock_timestamp();
END $$;
COMMENT ON FUNCTION lease_renew IS 'Renews a lease that has not expired. Says whether it is fenced otherwise, whether a sweep is due, and what time it is.';

CREATE FUNCTION outage_grace() RETURNS interval IMMUTABLE LANGUAGE sql AS $$ SELECT interval '150 seconds' $$;
COMMENT ON FUNCTION outage_grace IS 'How long agents may take to come back after all instances were away. The service has the same time (Timing::outage_grace).';

-- An instance that is killed and starts again at once finds its own old lease live, and its agents had no other to go to. So a lost instance
-- gets the short grace only if another one was live all the time, from before its last renewal until now.
CREATE FUNCTION instances_lapsed(grace double precision) RETURNS SETOF uuid STABLE LANGUAGE sql AS $$
    SELECT lost.id FROM ingest_instances lost
     WHERE NOT lost.fenced AND lost.stopped_at IS NULL AND lost.expires_at < now() - make_interval(secs => grace)
       AND (lost.expires_at < now() - outage_grace()
            OR EXISTS (SELECT FROM ingest_instances i
                        WHERE NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now() AND i.started_at <= lost.renewed_at));
$$;
COMMENT ON FUNCTION instances_lapsed IS
    'Instances that are not fenced yet and whose lease expired longer ago than the grace, or than outage_grace if no other one was live all the time.';

-- A statement that was under way when its instance ended may have come in late, so an instance is looked at for an hour.
CREATE FUNCTION instances_gone(grace double precision) RETURNS uuid[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY (SELECT i.id FROM ingest_instances i
                   WHERE NOT i.swept AND (i.fenced OR i.stopped_at NOT BETWEEN now() - make_interval(secs => grace) AND now()));
$$;
COMMENT ON FUNCTION instances_gone IS 'Instances that were fenced or have stopped, and whose sessions may still have to end.';

-- Only the holder of a lease may fence: a sweep that was sent before the database stood still, and arrives after, would find all lapsed.
CREATE FUNCTION leases_fence(sweeper uuid, grace double precision) RETURNS integer LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE fenced integer;
BEGIN
    IF NOT lease_is_held(sweeper) OR sweep_is_paused() THEN
        RETURN 0;
    END IF;
    UPDATE ingest_instances i SET fenced = true
     WHERE i.id = ANY (ARRAY (
           SELECT late.id FROM ingest_instances late
            WHERE late.id IN (SELECT instances_lapsed(grace)) ORDER BY late.id FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS fenced = ROW_COUNT;
    DELETE FROM ingest_instances i
     WHERE i.expires_at < now() - interval '30 days' AND (i.fenced OR i.stopped_at IS NOT NULL) AND i.swept;
    RETURN fenced;
END $$;
COMMENT ON FUNCTION leases_fence IS 'Fences the leases that expired longer ago than the grace, if the sweeper holds one. Deletes instances of long ago. Returns how many were fenced.';

REVOKE EXECUTE ON FUNCTION outage_grace, sweep_is_paused, lease_is_held, leases_restart, lease_renew, instances_lapsed, instances_gone, leases_fence
    FROM PUBLIC;
