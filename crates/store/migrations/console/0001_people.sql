-- People, their sessions, and the links by which they come in. Secrets are stored as SHA-256
-- hashes of 32 random bytes; passwords as Argon2id.

CREATE TABLE console.users (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text        NOT NULL CHECK (name ~ '^[a-z0-9][a-z0-9._@-]{0,63}$'),
    role          text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    password_hash text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    created_by    text        NOT NULL,
    disabled_at   timestamptz,
    signed_in_at  timestamptz,
    UNIQUE (name)
);

COMMENT ON TABLE console.users IS 'People who may use the console.';
COMMENT ON COLUMN console.users.id IS 'Of the person.';
COMMENT ON COLUMN console.users.name IS 'The name to sign in with, and the actor of the person''s decisions.';
COMMENT ON COLUMN console.users.role IS 'viewer (reads), operator (decides about agents and hosts), or admin (also tokens and people).';
COMMENT ON COLUMN console.users.password_hash IS 'Argon2id in PHC form; null until a password is set.';
COMMENT ON COLUMN console.users.created_at IS 'When the person was added.';
COMMENT ON COLUMN console.users.created_by IS 'The person or the command that added it.';
COMMENT ON COLUMN console.users.disabled_at IS 'Since when the person may not sign in.';
COMMENT ON COLUMN console.users.signed_in_at IS 'When the person last signed in.';

CREATE TABLE console.links (
    user_id    uuid PRIMARY KEY REFERENCES console.users ON DELETE CASCADE,
    hash       bytea       NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    kind       text        NOT NULL CHECK (kind IN ('password', 'sign-in')),
    expires_at timestamptz NOT NULL
);

COMMENT ON TABLE console.links IS 'One-time links: at most one a person, so that a new one ends the one before. A used one is deleted.';
COMMENT ON COLUMN console.links.user_id IS 'The person it is for.';
COMMENT ON COLUMN console.links.hash IS 'SHA-256 of the link''s code.';
COMMENT ON COLUMN console.links.kind IS 'password (sets one) or sign-in (signs in at once).';
COMMENT ON COLUMN console.links.expires_at IS 'When it ends.';

CREATE TABLE console.sessions (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    id         uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    user_id    uuid        NOT NULL REFERENCES console.users ON DELETE CASCADE,
    address    inet,
    created_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);

CREATE INDEX sessions_user ON console.sessions (user_id);
CREATE INDEX sessions_expiry ON console.sessions (expires_at);

COMMENT ON TABLE console.sessions IS 'Who is signed in.';
COMMENT ON COLUMN console.sessions.hash IS 'SHA-256 of the session''s cookie.';
COMMENT ON COLUMN console.sessions.id IS 'By which its person ends it.';
COMMENT ON COLUMN console.sessions.user_id IS 'The person.';
COMMENT ON COLUMN console.sessions.address IS 'Where the person signed in from.';
COMMENT ON COLUMN console.sessions.created_at IS 'When the person signed in.';
COMMENT ON COLUMN console.sessions.seen_at IS 'The last request, to within a minute.';
COMMENT ON COLUMN console.sessions.expires_at IS 'When it ends, however active it is.';

CREATE TABLE console.browsers (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id    uuid        NOT NULL REFERENCES console.users ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);

CREATE INDEX browsers_user ON console.browsers (user_id);

COMMENT ON TABLE console.browsers IS 'Browsers in which a person has signed in before: others cannot use up their attempts.';
COMMENT ON COLUMN console.browsers.hash IS 'SHA-256 of the browser''s cookie.';
COMMENT ON COLUMN console.browsers.user_id IS 'The person.';
COMMENT ON COLUMN console.browsers.expires_at IS 'When it is forgotten.';
