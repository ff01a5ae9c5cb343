-- The keys that an instance accepts besides the one that it signs with. An instance of an earlier version writes none:
-- it accepts its own key alone, which is what the default says.

ALTER TABLE ingest_instances ADD COLUMN extra_kids text[] NOT NULL DEFAULT '{}';

COMMENT ON COLUMN ingest_instances.kid IS
    'RFC 7638 thumbprint of the key that the instance signs with. Two live instances with different ones accept each other''s (extra_kids).';
COMMENT ON COLUMN ingest_instances.extra_kids IS
    'Thumbprints of the keys whose JWTs the instance publishes and accepts besides its own: those of a key rotation.';
