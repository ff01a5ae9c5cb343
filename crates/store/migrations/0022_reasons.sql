-- Revoking an enrolment token has a reason, as the other decisions do.

CREATE FUNCTION revoke_enrolment_token(token uuid, actor text, revoke_agents boolean, reason text)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer := 0;
BEGIN
    UPDATE enrolment_tokens t SET revoked_at = coalesce(t.revoked_at, now()), revoked_by = coalesce(t.revoked_by, actor)
     WHERE t.id = token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no enrolment token %', token USING ERRCODE = 'SV404';
    END IF;
    IF revoke_agents THEN
        -- In one order, so that two decisions about the same agents wait for each other.
        PERFORM FROM agents a WHERE a.token_id = token AND a.status IN ('active', 'pending') ORDER BY a.id FOR UPDATE;
        PERFORM decision_begins(actor, coalesce('enrolment token revoked: '::text || reason, 'enrolment token revoked'::text));
        WITH decided AS (
            UPDATE agents a SET status = CASE a.status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
             WHERE a.token_id = token AND a.status IN ('active', 'pending') RETURNING a.id)
        SELECT count(*) INTO touched FROM decided;
    END IF;
    RETURN touched;
END $$;

COMMENT ON FUNCTION revoke_enrolment_token(uuid, text, boolean, text) IS
    'Revokes a token and, if asked to, the agents that registered with it: active ones are revoked, pending ones rejected. Returns how many agents.';

REVOKE EXECUTE ON FUNCTION revoke_enrolment_token(uuid, text, boolean, text) FROM PUBLIC;

-- The same as before, without a reason.
CREATE OR REPLACE FUNCTION revoke_enrolment_token(token uuid, actor text, revoke_agents boolean DEFAULT false)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RETURN revoke_enrolment_token(token, actor, revoke_agents, NULL::text);
END $$;

-- ---- Retirement --------------------------------------------------------------

-- The same as before, and the host has an event: a host without agents left no trace of who retired it.
CREATE OR REPLACE FUNCTION retire_host(host uuid, actor text, reason text DEFAULT NULL)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE touched integer;
BEGIN
    PERFORM FROM agents a WHERE a.host_id = host AND a.status IN ('active', 'pending') ORDER BY a.id FOR UPDATE;
    UPDATE hosts h SET retired_at = now() WHERE h.id = host AND h.retired_at IS NULL;
    IF FOUND THEN
        INSERT INTO host_events (host_id, kind, actor, text)
        VALUES (host, 'retired', left(coalesce(actor, ''::text), 255), left(coalesce(reason, ''::text), 500));
    ELSIF NOT EXISTS (SELECT FROM hosts h WHERE h.id = host) THEN
        RAISE EXCEPTION 'there is no host %', host USING ERRCODE = 'SV404';
    END IF;
    PERFORM decision_begins(actor, coalesce(reason, 'host retired'::text));
    WITH decided AS (
        UPDATE agents a SET status = CASE a.status WHEN 'active' THEN 'revoked' ELSE 'rejected' END
         WHERE a.host_id = host AND a.status IN ('active', 'pending') RETURNING a.id)
    SELECT count(*) INTO touched FROM decided;
    RETURN touched;
END $$;

-- The same as before: the event is written by retire_host.
CREATE OR REPLACE FUNCTION expire_hosts(offline_for interval, actor text, most integer DEFAULT 1000)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    expired record;
    touched integer := 0;
BEGIN
    IF offline_for < interval '1 hour' THEN
        RAISE EXCEPTION 'hosts expire after an hour at least' USING ERRCODE = 'SV400';
    END IF;
    FOR expired IN
        SELECT h.id, s.presence_since FROM agent_state s
          JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
          JOIN hosts h ON h.id = a.host_id AND h.retired_at IS NULL
         WHERE s.presence = 'offline' AND s.presence_since < now() - offline_for
         ORDER BY s.presence_since LIMIT most
    LOOP
        PERFORM retire_host(expired.id, actor, 'offline since '::text || pg_catalog.date_trunc('second'::text, expired.presence_since)::text);
        touched := touched + 1;
    END LOOP;
    RETURN touched;
END $$;
