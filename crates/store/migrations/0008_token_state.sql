-- One definition of a token's state. The view, the lookups of the service and the statement
-- that takes a use of a token all call this function. PostgreSQL inlines it.

CREATE FUNCTION enrolment_token_state(token enrolment_tokens) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN token.revoked_at IS NOT NULL THEN 'revoked'
                WHEN token.expires_at <= now() THEN 'expired'
                WHEN token.uses >= token.max_uses THEN 'exhausted'
                ELSE 'active' END;
$$;

COMMENT ON FUNCTION enrolment_token_state IS
    'The state of a token now: active, expired, exhausted or revoked. PUBLIC may call it, because a view calls its functions with the rights of its reader.';

CREATE OR REPLACE VIEW enrolment_token_states AS
    SELECT id, label, auto_approve, allow_reinstall, max_uses, uses, labels, created_at, created_by,
           expires_at, revoked_at, revoked_by, last_used_at, enrolment_token_state(token) AS state
      FROM enrolment_tokens token;
