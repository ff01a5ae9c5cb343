-- Metrics: single samples by day, what is missing among them, and each host's latest.

CREATE TABLE host_metrics (
    host_id            uuid             NOT NULL,
    sampled_at         timestamptz      NOT NULL,
    agent_id           uuid             NOT NULL,
    seq                bigint           NOT NULL,
    cpu_percent        double precision NOT NULL,
    load_1m            double precision NOT NULL,
    load_5m            double precision NOT NULL,
    load_15m           double precision NOT NULL,
    memory_used_bytes  bigint           NOT NULL,
    memory_total_bytes bigint           NOT NULL,
    swap_used_bytes    bigint           NOT NULL,
    swap_total_bytes   bigint           NOT NULL,
    uptime_seconds     bigint           NOT NULL,
    process_count      bigint           NOT NULL,
    network_rx_bytes   bigint           NOT NULL,
    network_tx_bytes   bigint           NOT NULL,
    disks              jsonb            NOT NULL
) PARTITION BY RANGE (sampled_at);

CREATE INDEX host_metrics_host ON host_metrics (host_id, sampled_at);

COMMENT ON TABLE host_metrics IS 'Every sample of every host, once; one partition for each UTC day.';
COMMENT ON COLUMN host_metrics.host_id IS 'The host.';
COMMENT ON COLUMN host_metrics.sampled_at IS 'When the sample was taken, as the agent says.';
COMMENT ON COLUMN host_metrics.agent_id IS 'The agent that took it.';
COMMENT ON COLUMN host_metrics.seq IS 'The agent''s number of the sample: (agent_id, seq) stands here at most once.';
COMMENT ON COLUMN host_metrics.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN host_metrics.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN host_metrics.load_5m IS 'Load average over five minutes.';
COMMENT ON COLUMN host_metrics.load_15m IS 'Load average over fifteen minutes.';
COMMENT ON COLUMN host_metrics.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN host_metrics.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN host_metrics.swap_used_bytes IS 'Swap in use.';
COMMENT ON COLUMN host_metrics.swap_total_bytes IS 'Swap configured.';
COMMENT ON COLUMN host_metrics.uptime_seconds IS 'Time since boot.';
COMMENT ON COLUMN host_metrics.process_count IS 'Processes.';
COMMENT ON COLUMN host_metrics.network_rx_bytes IS 'Bytes received since boot, without loopback.';
COMMENT ON COLUMN host_metrics.network_tx_bytes IS 'Bytes sent since boot, without loopback.';
COMMENT ON COLUMN host_metrics.disks IS 'File systems: [{mount_point, device, fs_type, total_bytes, used_bytes}].';

CREATE TABLE metric_gaps (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id    uuid        NOT NULL,
    first_seq   bigint      NOT NULL,
    last_seq    bigint      NOT NULL CHECK (last_seq >= first_seq),
    kind        text        NOT NULL CHECK (kind IN ('not sent', 'declared', 'rejected')),
    reason      text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX metric_gaps_agent ON metric_gaps (agent_id, first_seq);

COMMENT ON TABLE metric_gaps IS 'The numbers for which no sample is stored, and why.';
COMMENT ON COLUMN metric_gaps.id IS 'In order of recording.';
COMMENT ON COLUMN metric_gaps.agent_id IS 'Whose numbers.';
COMMENT ON COLUMN metric_gaps.first_seq IS 'The first missing number.';
COMMENT ON COLUMN metric_gaps.last_seq IS 'The last missing number.';
COMMENT ON COLUMN metric_gaps.kind IS 'not sent (skipped), declared (the agent lost them), or rejected (broke the rules).';
COMMENT ON COLUMN metric_gaps.reason IS 'More of why.';
COMMENT ON COLUMN metric_gaps.recorded_at IS 'When it was recorded.';

-- A host's latest vitals: columns without an index, in pages with room, so that updates stay in the page.
ALTER TABLE hosts SET (fillfactor = 50);
ALTER TABLE hosts
    ADD COLUMN vitals_at         timestamptz,
    ADD COLUMN cpu_percent       double precision,
    ADD COLUMN load_1m           double precision,
    ADD COLUMN memory_used_bytes bigint,
    ADD COLUMN swap_used_bytes   bigint,
    ADD COLUMN uptime_seconds    bigint,
    ADD COLUMN process_count     bigint,
    ADD COLUMN disks             jsonb;

COMMENT ON COLUMN hosts.vitals_at IS 'When the latest sample was taken; the vitals below are from it.';
COMMENT ON COLUMN hosts.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN hosts.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN hosts.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN hosts.swap_used_bytes IS 'Swap in use.';
COMMENT ON COLUMN hosts.uptime_seconds IS 'Time since boot.';
COMMENT ON COLUMN hosts.process_count IS 'Processes.';
COMMENT ON COLUMN hosts.disks IS 'File systems: [{mount_point, device, fs_type, total_bytes, used_bytes}].';

-- Makes the days' partitions that samples may fall into, where they are missing.
CREATE FUNCTION metrics_partitions_ensure(retention interval) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    day  date;
    made integer := 0;
BEGIN
    FOR day IN
        SELECT generate_series((now() AT TIME ZONE 'UTC' - retention)::date - 1, (now() AT TIME ZONE 'UTC')::date + 2, '1 day')::date
    LOOP
        IF to_regclass(format('host_metrics_%s', to_char(day, 'YYYYMMDD'))) IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF host_metrics FOR VALUES FROM (%L) TO (%L)',
                           'host_metrics_' || to_char(day, 'YYYYMMDD'),
                           day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;

REVOKE EXECUTE ON FUNCTION metrics_partitions_ensure FROM PUBLIC;
