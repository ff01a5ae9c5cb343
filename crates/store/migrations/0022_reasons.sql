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
