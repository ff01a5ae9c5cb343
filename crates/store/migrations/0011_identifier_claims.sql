-- What an agent may claim about its machine.
--
-- Facts are claims: an agent may say anything in a Hello or a registration. A claim must not take
-- the identifiers of another machine, because later registrations of that machine would then find
-- the wrong host, nor fill the table.
--
-- It is a trigger, so that it holds whichever function or version adds identifiers. A host that is
-- created in this transaction keeps what it is created with: the registration has looked for its
-- machine before, and machines that were cloned from one image share the weaker kinds.

CREATE FUNCTION host_identifiers_limit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE most CONSTANT integer := 64;
BEGIN
    IF (SELECT count(*) FROM host_identifiers i WHERE i.host_id = NEW.host_id AND i.kind = NEW.kind) >= most THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM hosts h WHERE h.id = NEW.host_id AND h.created_at = now()) THEN
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT FROM host_identifiers i JOIN hosts h ON h.id = i.host_id AND h.retired_at IS NULL
                WHERE i.kind = NEW.kind AND i.value = NEW.value AND i.host_id <> NEW.host_id) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION host_identifiers_limit IS
    'Leaves out an identifier that another host in service has, and those beyond 64 of one kind.';

REVOKE EXECUTE ON FUNCTION host_identifiers_limit() FROM PUBLIC;

CREATE TRIGGER host_identifiers_limit BEFORE INSERT ON host_identifiers
    FOR EACH ROW EXECUTE FUNCTION host_identifiers_limit();

COMMENT ON TRIGGER host_identifiers_limit ON host_identifiers IS
    'An agent cannot claim the identifiers of another machine, nor fill the table.';
