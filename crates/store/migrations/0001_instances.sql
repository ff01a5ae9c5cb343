-- The leases of the running instances. Times are the database's clock.

CREATE TABLE ingest_instances (
    id           uuid PRIMARY KEY,
    kid          text        NOT NULL,
    hostname     text        NOT NULL,
    version      text        NOT NULL,
    grpc_address text        NOT NULL,
    http_address text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    renewed_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    fenced       boolean     NOT NULL DEFAULT false,
    stopped_at   timestamptz
);

-- Few rows live at any time, however many have ended.
CREATE INDEX ingest_instances_open ON ingest_instances (expires_at)
    WHERE NOT fenced AND stopped_at IS NULL;

COMMENT ON TABLE ingest_instances IS
    'One row for each life of a service instance: its lease. An instance is live while it is neither fenced nor stopped and expires_at is in the future.';
COMMENT ON COLUMN ingest_instances.id IS 'The life of the instance; a restart, or being fenced, takes a new one.';
COMMENT ON COLUMN ingest_instances.kid IS 'RFC 7638 thumbprint of the signing key that the instance uses; the same on all live instances.';
COMMENT ON COLUMN ingest_instances.hostname IS 'Name of the machine or container that the instance runs on.';
COMMENT ON COLUMN ingest_instances.version IS 'Version of the svc-ingest program.';
COMMENT ON COLUMN ingest_instances.grpc_address IS 'Address and port on which the instance serves agents.';
COMMENT ON COLUMN ingest_instances.http_address IS 'Address and port on which the instance serves health, JWKS and metrics.';
COMMENT ON COLUMN ingest_instances.started_at IS 'When the lease was first taken.';
COMMENT ON COLUMN ingest_instances.renewed_at IS 'When the lease was last renewed.';
COMMENT ON COLUMN ingest_instances.expires_at IS 'When the lease lapses unless it is renewed before.';
COMMENT ON COLUMN ingest_instances.fenced IS 'True once another instance declared this one lost; it cannot be renewed after that.';
COMMENT ON COLUMN ingest_instances.stopped_at IS 'When the instance gave its lease back at a clean stop; null while it runs or was lost.';
