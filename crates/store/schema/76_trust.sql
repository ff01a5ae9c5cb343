-- Trust anchors: the certificates with which agents verify the service, and those with which they will.
--
-- Agents take an anchor only over a connection that they verify with what they trust already, and say which ones they have. So a person
-- can see who would be locked out before the service's certificate changes.

CREATE TABLE trust_anchors (
    hash        text        PRIMARY KEY,
    certificate bytea       NOT NULL CHECK (octet_length(certificate) BETWEEN 1 AND 8192),
    subject     text        NOT NULL CHECK (octet_length(subject) <= 255),
    not_after   timestamptz NOT NULL,
    revision    bigint      NOT NULL UNIQUE CHECK (revision > 0),
    added_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    added_by    text        NOT NULL CHECK (octet_length(added_by) <= 255),
    retired_at  timestamptz,
    retired_by  text        CHECK (octet_length(retired_by) <= 255),
    CHECK (hash = encode(sha256(certificate), 'hex')),
    CHECK ((retired_at IS NULL) = (retired_by IS NULL))
);
COMMENT ON TABLE trust_anchors IS 'The certificates that verify the service, or will: an authority''s, or the service''s own. At most 8 that are not retired.';
COMMENT ON COLUMN trust_anchors.hash IS 'SHA-256 of the certificate, in hexadecimal.';
COMMENT ON COLUMN trust_anchors.certificate IS 'The certificate, DER.';
COMMENT ON COLUMN trust_anchors.subject IS 'Its subject, for people.';
COMMENT ON COLUMN trust_anchors.not_after IS 'Its end, for people: agents judge it themselves.';
COMMENT ON COLUMN trust_anchors.revision IS 'The number of the last change of this row. The highest one is the version of the whole list.';
COMMENT ON COLUMN trust_anchors.added_at IS 'When it was added.';
COMMENT ON COLUMN trust_anchors.added_by IS 'Who added it, as they said.';
COMMENT ON COLUMN trust_anchors.retired_at IS 'Since when agents drop it; null while they are to trust it.';
COMMENT ON COLUMN trust_anchors.retired_by IS 'Who retired it, as they said.';

-- A row changes with the list of anchors and with the agent's own configuration, so it is apart from agent_state.
CREATE TABLE agent_trust (
    agent_id uuid        PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    anchors  text[]      NOT NULL CHECK (cardinality(anchors) <= 16),
    problem  text        NOT NULL CHECK (octet_length(problem) <= 500),
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE agent_trust IS 'Which certificates each agent trusts beyond the system''s, as it said last. Agents that say nothing of them have no row.';
COMMENT ON COLUMN agent_trust.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_trust.anchors IS 'SHA-256 of each certificate, in hexadecimal, each once. Empty: it has the system''s roots alone.';
COMMENT ON COLUMN agent_trust.problem IS 'Why it does not take some anchor, for people; off: its configuration forbids it.';
COMMENT ON COLUMN agent_trust.since IS 'When it said something else than before.';

-- One change at a time, so that the revisions are in the order of the commits and the number is bounded.
CREATE FUNCTION add_trust_anchor(certificate bytea, subject text, not_after timestamptz, actor text)
    RETURNS void LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE added text := encode(sha256(certificate), 'hex');
BEGIN
    LOCK TABLE trust_anchors IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM trust_anchors t WHERE t.hash = added AND t.retired_at IS NULL) THEN
        RETURN;
    END IF;
    IF (SELECT count(*) FROM trust_anchors t WHERE t.retired_at IS NULL) >= 8 THEN
        RAISE EXCEPTION 'there are 8 trust anchors already' USING ERRCODE = 'SV409', HINT = 'retire one that verifies no service any more';
    END IF;
    INSERT INTO trust_anchors AS t (hash, certificate, subject, not_after, revision, added_by)
    VALUES (added, add_trust_anchor.certificate, add_trust_anchor.subject, add_trust_anchor.not_after,
            (SELECT coalesce(max(o.revision), 0) + 1 FROM trust_anchors o), left(actor, 255))
        ON CONFLICT ON CONSTRAINT trust_anchors_pkey DO UPDATE SET
           revision = excluded.revision, added_at = clock_timestamp(), added_by = excluded.added_by, retired_at = NULL, retired_by = NULL;
    PERFORM add_people_event('trust anchor added', add_trust_anchor.subject, actor, NULL, 'done', added);
END $$;
COMMENT ON FUNCTION add_trust_anchor IS 'Adds a trust anchor, or takes it back into the list. Agents are told of it within seconds.';

CREATE FUNCTION retire_trust_anchor(retired text, forced boolean, actor text)
    RETURNS void LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE name text; lost bigint;
BEGIN
    LOCK TABLE trust_anchors IN SHARE ROW EXCLUSIVE MODE;
    SELECT t.subject INTO name FROM trust_anchors t WHERE t.hash = retired AND t.retired_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no such trust anchor in use' USING ERRCODE = 'SV404';
    END IF;
    SELECT count(*) INTO lost FROM agent_trust s JOIN agents a ON a.id = s.agent_id AND a.status = 'active'
     WHERE retired = ANY (s.anchors)
       AND NOT s.anchors && (SELECT coalesce(array_agg(t.hash), '{}') FROM trust_anchors t WHERE t.hash <> retired AND t.retired_at IS NULL);
    IF lost > 0 AND NOT forced THEN
        RAISE EXCEPTION 'agents that trust no other listed anchor: %', lost
            USING ERRCODE = 'SV409', HINT = 'svc-ingest trust status names them; --force retires it all the same';
    END IF;
    UPDATE trust_anchors t SET retired_at = clock_timestamp(), retired_by = left(actor, 255),
           revision = (SELECT max(o.revision) + 1 FROM trust_anchors o)
     WHERE t.hash = retired;
    PERFORM add_people_event('trust anchor retired', name, actor, NULL, 'done',
                             retired || CASE WHEN lost > 0 THEN ', forced; agents that trust no other: ' || lost ELSE '' END);
END $$;
COMMENT ON FUNCTION retire_trust_anchor IS 'Lets agents drop a trust anchor. Refused while agents trust no other listed one, unless forced.';

REVOKE EXECUTE ON FUNCTION add_trust_anchor, retire_trust_anchor FROM PUBLIC;
