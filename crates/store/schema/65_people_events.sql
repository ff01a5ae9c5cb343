-- The record of what happens to the people who use the web console, and of enrolment tokens.
--
-- The console's role writes it through a function alone, so that whoever has the console's connection can neither delete nor change what it
-- says. What an attempt claims stays a claim; the time, the database user and the number are facts.

CREATE TABLE people_events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind    text        NOT NULL CHECK (kind IN (
        'sign-in', 'sign-out', 'sessions ended', 'link created', 'link used', 'password set', 'user added', 'user disabled', 'user enabled',
        'role changed', 'token created', 'token revoked', 'settings added', 'settings changed', 'settings removed', 'trust anchor added',
        'trust anchor retired')),
    outcome text        NOT NULL DEFAULT 'done' CHECK (outcome IN ('done', 'refused', 'limited')),
    subject text        NOT NULL DEFAULT '',
    actor   text,
    address inet,
    detail  text        NOT NULL DEFAULT '',
    times   integer     NOT NULL DEFAULT 1,
    db_user text        NOT NULL DEFAULT session_user
);
CREATE INDEX people_events_at ON people_events (at, id);
COMMENT ON TABLE people_events IS 'What happened to people, to enrolment tokens and to settings of agents: attempts to sign in, links, passwords, sessions, changes of people; tokens made and revoked; rules of settings made, changed and removed.';
COMMENT ON COLUMN people_events.id IS 'In order of writing.';
COMMENT ON COLUMN people_events.at IS 'When; of several alike, the first.';
COMMENT ON COLUMN people_events.kind IS 'What was done or tried.';
COMMENT ON COLUMN people_events.outcome IS 'done; refused (a wrong password, a used link); or limited (refused unseen after too many attempts).';
COMMENT ON COLUMN people_events.subject IS 'The person''s name, the token''s label or the rule; empty where nobody has the name that was tried.';
COMMENT ON COLUMN people_events.actor IS 'Who did it, as they said: a person of the console, or a user of the operating system. Null if nobody proved to be anybody.';
COMMENT ON COLUMN people_events.address IS 'The address that the request came from; null for the command line.';
COMMENT ON COLUMN people_events.detail IS 'More of it.';
COMMENT ON COLUMN people_events.times IS 'How often, within one hour of the clock. Only refused attempts are counted so.';
COMMENT ON COLUMN people_events.db_user IS 'The database user that did it.';

-- Strangers cause refusals. So those of an hour that are alike are one row, and an hour has at most 200 rows of them: further ones are counted
-- without name and address. One at a time (locks.rs has the key), so that the count is
-- exact.
CREATE FUNCTION add_people_event(kind text, subject text, actor text, address inet, outcome text, detail text)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE since timestamptz := date_trunc('hour'::text, clock_timestamp());
BEGIN
    subject := left(coalesce(subject, ''::text), 255);
    detail := left(coalesce(detail, ''::text), 1000);
    IF outcome <> 'done' THEN
        PERFORM pg_advisory_xact_lock(126952311160839::bigint);
        FOR attempt IN 1..2 LOOP
            UPDATE people_events e SET times = e.times + 1
             WHERE e.at >= since AND e.kind = add_people_event.kind AND e.outcome = add_people_event.outcome
               AND e.subject = add_people_event.subject AND e.address IS NOT DISTINCT FROM add_people_event.address;
            IF FOUND THEN
                RETURN;
            END IF;
            EXIT WHEN (SELECT count(*) FROM people_events e WHERE e.at >= since AND e.outcome <> 'done') < 200;
            subject := '';
            address := NULL;
            detail := 'of many names or from many addresses';
        END LOOP;
    END IF;
    INSERT INTO people_events (kind, subject, actor, address, outcome, detail)
    VALUES (kind, subject, left(actor, 255), address, outcome, detail);
END $$;
COMMENT ON FUNCTION add_people_event IS 'Records what happened to a person. Refused attempts of one hour that are alike are counted in one row.';

CREATE FUNCTION enrolment_tokens_record() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM add_people_event(
            'token created'::text, NEW.label, NEW.created_by, NULL::inet, 'done'::text,
            NEW.max_uses::text || CASE WHEN NEW.max_uses = 1 THEN ' use'::text ELSE ' uses'::text END
                || CASE WHEN NEW.auto_approve THEN ', approves by itself'::text ELSE ''::text END);
    ELSIF OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL THEN
        PERFORM add_people_event(
            'token revoked'::text, NEW.label, NEW.revoked_by, NULL::inet, 'done'::text, current_setting('svc.reason'::text, true));
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION enrolment_tokens_record IS 'Records that a token was made or revoked, whoever did it.';
CREATE TRIGGER enrolment_tokens_record AFTER INSERT OR UPDATE OF revoked_at ON enrolment_tokens
    FOR EACH ROW EXECUTE FUNCTION enrolment_tokens_record();

REVOKE EXECUTE ON FUNCTION add_people_event, enrolment_tokens_record FROM PUBLIC;
