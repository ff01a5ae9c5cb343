-- Hours whose rollup fails when it is computed alone: one host must not stop the rollups of all others.

CREATE TABLE rollups_set_aside (
    hour     timestamptz NOT NULL,
    host_id  uuid        NOT NULL,
    since    timestamptz NOT NULL DEFAULT now(),
    tried_at timestamptz NOT NULL DEFAULT now(),
    tries    integer     NOT NULL DEFAULT 1,
    reason   text        NOT NULL,
    PRIMARY KEY (hour, host_id)
);

COMMENT ON TABLE rollups_set_aside IS
    'Hours that could not be rolled up, even alone. They are tried again from time to time, and removed once that works. Only the holder of the rollups'' lock writes here.';
COMMENT ON COLUMN rollups_set_aside.hour IS 'The hour.';
COMMENT ON COLUMN rollups_set_aside.host_id IS 'The host.';
COMMENT ON COLUMN rollups_set_aside.since IS 'When it first failed.';
COMMENT ON COLUMN rollups_set_aside.tried_at IS 'When it last failed.';
COMMENT ON COLUMN rollups_set_aside.tries IS 'How often it has failed.';
COMMENT ON COLUMN rollups_set_aside.reason IS 'Why it last failed.';
