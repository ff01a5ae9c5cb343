-- Claims that cost the same for every fleet, and a sweep in batches.
--
-- A claim after an outage used to give every drained agent more time, row by row. With statistics from a moment at which nobody was
-- drained PostgreSQL chose a nested loop, and the claim ran into its time limit: a site that was stopped with 5,000 agents did not start
-- again. Now one row says until when nothing is swept. The sweep, which ended all sessions of all lost instances in one statement, ends
-- at most one batch of them; fencing is a transaction of its own, so that it does not depend on how many sessions have to end.
--
-- A time in the future proves that the database's clock was set back, and nothing else. A lease that was renewed in the future begins its
-- term again: a live instance renews it within seconds, a dead one's expires. A drained agent whose time lies further ahead than any drain
-- allows gets the longest one from now on.

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
COMMENT ON COLUMN ingest_instances.grace_until IS 'Not used any more: sweep_pause has the grace after an outage.';

ALTER TABLE ingest_instances ADD COLUMN swept boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN ingest_instances.swept IS 'True when the instance has been fenced or stopped for an hour and no session is recorded under its id any more.';
UPDATE ingest_instances SET swept = true WHERE (fenced OR stopped_at IS NOT NULL) AND expires_at < now() - interval '1 hour';
CREATE INDEX ingest_instances_unswept ON ingest_instances (id) WHERE NOT swept;

-- The settings are the optimizer's fence of this file. The values of instance_id and online_until change for the whole fleet at once, so
-- statistics about them are wrong exactly when it matters: the planner would read the whole table because it expects to find a row soon,
-- or a few rows because it expects none. Without sequential scans the partial indexes remain, which are right in every case.

CREATE FUNCTION sweep_is_paused() RETURNS boolean STABLE LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM sweep_pause p WHERE p.since <= clock_timestamp() AND clock_timestamp() < p.until);
$$;
COMMENT ON FUNCTION sweep_is_paused IS 'Whether nothing may be swept now.';

CREATE FUNCTION sweep_postpone(grace double precision) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    UPDATE sweep_pause SET since = clock_timestamp(), until = clock_timestamp() + make_interval(secs => grace)
     WHERE EXISTS (SELECT FROM agent_state s WHERE s.online_until IS NOT NULL)
        OR EXISTS (SELECT FROM agent_state s WHERE s.instance_id IS NOT NULL);
END $$;
COMMENT ON FUNCTION sweep_postpone IS 'Lets nothing be swept for so many seconds, if any agent counts as online.';

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

CREATE OR REPLACE FUNCTION lease_renew(
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

CREATE FUNCTION lease_is_held(instance uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ingest_instances i
      WHERE i.id = instance AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now() FOR SHARE;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION lease_is_held IS 'Whether the instance holds a lease. It cannot be fenced before the transaction has ended.';

CREATE FUNCTION instances_lapsed(grace double precision) RETURNS SETOF uuid STABLE LANGUAGE sql AS $$
    SELECT i.id FROM ingest_instances i
     WHERE NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at < now() - make_interval(secs => grace);
$$;
COMMENT ON FUNCTION instances_lapsed IS 'Instances whose lease expired longer ago than the grace, and that are not fenced yet.';

-- A statement that was under way when its instance ended may have come in late, so an instance is looked at for an hour.
CREATE FUNCTION instances_gone(grace double precision) RETURNS uuid[] STABLE LANGUAGE sql AS $$
    SELECT ARRAY (SELECT i.id FROM ingest_instances i
                   WHERE NOT i.swept AND (i.fenced OR i.stopped_at NOT BETWEEN now() - make_interval(secs => grace) AND now()));
$$;
COMMENT ON FUNCTION instances_gone IS 'Instances that were fenced or have stopped, and whose sessions may still have to end.';

CREATE FUNCTION drain_longest() RETURNS interval IMMUTABLE LANGUAGE sql AS $$ SELECT interval '15 minutes' $$;
COMMENT ON FUNCTION drain_longest IS 'More than any drained agent gets to come back.';

CREATE OR REPLACE FUNCTION sweep_is_due(grace double precision) RETURNS boolean
    LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE gone uuid[] := instances_gone(grace);
BEGIN
    RETURN NOT sweep_is_paused() AND (
        EXISTS (SELECT FROM agent_state s WHERE s.online_until < now())
        OR EXISTS (SELECT FROM agent_state s WHERE s.online_until > now() + drain_longest())
        OR EXISTS (SELECT FROM instances_lapsed(grace))
        OR EXISTS (SELECT FROM agent_state s WHERE s.instance_id = ANY (gone))
        OR EXISTS (SELECT FROM ingest_instances i WHERE i.id = ANY (gone) AND i.expires_at < now() - interval '1 hour')
        OR EXISTS (SELECT FROM ingest_instances i
                    WHERE i.expires_at < now() - interval '30 days' AND (i.fenced OR i.stopped_at IS NOT NULL)));
END $$;
COMMENT ON FUNCTION sweep_is_due IS 'Whether leases_fence or sessions_sweep_batch would find something.';

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

-- Any number may run at once: each takes rows that no other one has locked. A row that is locked is being opened or closed; it is left
-- alone, and so is its agent. Nothing waits here for a row of an agent, so the order of the locks does not matter.
CREATE FUNCTION sessions_sweep_batch(
    sweeper uuid, grace double precision, batch integer, OUT lost integer, OUT undrained integer)
    LANGUAGE plpgsql SET lock_timeout = '2s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE gone uuid[];
BEGIN
    lost := 0; undrained := 0;
    IF NOT lease_is_held(sweeper) OR sweep_is_paused() THEN
        RETURN;
    END IF;
    gone := instances_gone(grace);
    lost := sessions_end(ARRAY (
        SELECT s.agent_id FROM agent_state s WHERE s.instance_id = ANY (gone) LIMIT batch FOR UPDATE SKIP LOCKED), 'instance lost');
    undrained := sessions_end(ARRAY (
        SELECT s.agent_id FROM agent_state s WHERE s.online_until < now() LIMIT batch FOR UPDATE SKIP LOCKED), 'lost');
    UPDATE agent_state s SET online_until = now() + drain_longest()
     WHERE s.agent_id = ANY (ARRAY (
           SELECT ahead.agent_id FROM agent_state ahead
            WHERE ahead.online_until > now() + drain_longest() LIMIT batch FOR UPDATE SKIP LOCKED));
    UPDATE ingest_instances i SET swept = true
     WHERE i.id = ANY (gone) AND i.expires_at < now() - interval '1 hour'
       AND NOT EXISTS (SELECT FROM agent_state s WHERE s.instance_id = i.id);
END $$;
COMMENT ON FUNCTION sessions_sweep_batch IS 'Ends sessions of fenced and stopped instances, and of agents that did not return from a drain: at most one batch of each. The caller must hold a lease.';

-- For instances of the previous version.
CREATE OR REPLACE FUNCTION sessions_sweep(sweeper uuid, grace double precision)
    RETURNS TABLE (fenced integer, lost integer, undrained integer) LANGUAGE sql AS $$
    SELECT leases_fence(sweeper, grace), b.lost, b.undrained FROM sessions_sweep_batch(sweeper, grace, 2000) b;
$$;

REVOKE EXECUTE ON FUNCTION sweep_is_paused, sweep_postpone, leases_restart, lease_is_held, instances_lapsed, instances_gone,
    drain_longest, leases_fence, sessions_sweep_batch FROM PUBLIC;
