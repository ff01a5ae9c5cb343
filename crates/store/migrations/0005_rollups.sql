-- History as it is kept and read: rollups by the hour, what became too old to be
-- stored, the rest of a host's latest vitals, and partitions that come and go
-- without anybody waiting for them.

-- ---- Partitions --------------------------------------------------------------

-- Makes a partition, unless it is there. CREATE TABLE … PARTITION OF would lock out
-- everybody who reads or writes the parent; a table that is attached locks out nobody.
-- One that was detached and not dropped yet is attached again, with what it holds.
CREATE FUNCTION partition_ensure(parent text, suffix text, begins timestamptz, ends timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE name text := parent || '_' || suffix;
BEGIN
    IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent::regclass AND inhrelid = to_regclass(name)) THEN
        RETURN false;
    ELSIF to_regclass(name) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL EXCLUDING INDEXES)', name, parent);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                   parent, name, begins::text, ends::text);
    RETURN true;
END $$;

-- Makes the days' partitions that samples may fall into, where they are missing.
CREATE OR REPLACE FUNCTION metrics_partitions_ensure(retention interval) RETURNS integer
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    day  timestamptz;
    made integer := 0;
BEGIN
    FOR day IN
        SELECT generate_series(date_trunc('day', now() - retention) - interval '1 day',
                               date_trunc('day', now()) + interval '2 days', '1 day')
    LOOP
        IF partition_ensure('host_metrics', to_char(day, 'YYYYMMDD'), day, day + interval '1 day') THEN
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;

-- ---- Latest vitals -----------------------------------------------------------

ALTER TABLE hosts
    ADD COLUMN load_5m                  double precision,
    ADD COLUMN load_15m                 double precision,
    ADD COLUMN swap_total_bytes         bigint,
    ADD COLUMN network_rx_bytes         bigint,
    ADD COLUMN network_tx_bytes         bigint,
    ADD COLUMN fullest_disk_percent     smallint,
    ADD COLUMN fullest_disk_mount_point text;

-- Whole percents change rarely, and an update that leaves an indexed value as it
-- was stays in its page all the same.
CREATE INDEX hosts_fullest_disk ON hosts (fullest_disk_percent DESC NULLS LAST) WHERE retired_at IS NULL;

COMMENT ON COLUMN hosts.load_5m IS 'Load average over five minutes.';
COMMENT ON COLUMN hosts.load_15m IS 'Load average over fifteen minutes.';
COMMENT ON COLUMN hosts.swap_total_bytes IS 'Swap configured.';
COMMENT ON COLUMN hosts.network_rx_bytes IS 'Bytes received since boot, without loopback.';
COMMENT ON COLUMN hosts.network_tx_bytes IS 'Bytes sent since boot, without loopback.';
COMMENT ON COLUMN hosts.fullest_disk_percent IS 'Use of its fullest file system, in whole percents rounded down; null where it named none.';
COMMENT ON COLUMN hosts.fullest_disk_mount_point IS 'Which file system that is.';

CREATE OR REPLACE VIEW host_overview AS
    SELECT h.id, h.hostname, h.os, h.os_version, h.arch, h.labels, h.created_at, h.retired_at,
           a.id AS agent_id, a.version AS agent_version,
           coalesce(s.presence = 'online', false) AS online, s.presence_since, s.cause AS presence_cause,
           CASE WHEN s.presence = 'online' THEN greatest(s.last_seen_at, least(i.renewed_at, now())) ELSE s.last_seen_at END AS last_seen_at,
           s.clock_skew_ms,
           h.vitals_at, h.cpu_count, h.cpu_percent, h.load_1m, h.memory_used_bytes, h.memory_total_bytes,
           h.fullest_disk_percent, h.fullest_disk_mount_point
      FROM hosts h
      LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      LEFT JOIN agent_state s ON s.agent_id = a.id
      LEFT JOIN ingest_instances i ON i.id = s.instance_id;

COMMENT ON COLUMN host_overview.vitals_at IS 'When its latest sample was taken; the vitals are from it.';
COMMENT ON COLUMN host_overview.cpu_count IS 'Logical processors.';
COMMENT ON COLUMN host_overview.cpu_percent IS 'CPU use over all processors, 0 to 100.';
COMMENT ON COLUMN host_overview.load_1m IS 'Load average over one minute.';
COMMENT ON COLUMN host_overview.memory_used_bytes IS 'Memory in use.';
COMMENT ON COLUMN host_overview.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN host_overview.fullest_disk_percent IS 'Use of its fullest file system, in whole percents rounded down.';
COMMENT ON COLUMN host_overview.fullest_disk_mount_point IS 'Which file system that is.';

-- ---- Gaps --------------------------------------------------------------------

ALTER TABLE metric_gaps
    DROP CONSTRAINT metric_gaps_kind_check,
    ADD CONSTRAINT metric_gaps_kind_check CHECK (kind IN ('not sent', 'declared', 'rejected', 'not kept'));

COMMENT ON COLUMN metric_gaps.kind IS
    'not sent (skipped), declared (the agent lost them), rejected (broke the rules), or not kept (their day was dropped before they could be stored).';

-- ---- Rollups -----------------------------------------------------------------

CREATE TABLE host_metrics_hourly (
    host_id                   uuid             NOT NULL,
    hour                      timestamptz      NOT NULL,
    first_at                  timestamptz      NOT NULL,
    last_at                   timestamptz      NOT NULL,
    counters_from             timestamptz      NOT NULL,
    cpu_percent_min           double precision NOT NULL,
    cpu_percent_avg           double precision NOT NULL,
    cpu_percent_max           double precision NOT NULL,
    load_1m_min               double precision NOT NULL,
    load_1m_avg               double precision NOT NULL,
    load_1m_max               double precision NOT NULL,
    load_5m_min               double precision NOT NULL,
    load_5m_avg               double precision NOT NULL,
    load_5m_max               double precision NOT NULL,
    load_15m_min              double precision NOT NULL,
    load_15m_avg              double precision NOT NULL,
    load_15m_max              double precision NOT NULL,
    memory_used_bytes_min     bigint           NOT NULL,
    memory_used_bytes_avg     bigint           NOT NULL,
    memory_used_bytes_max     bigint           NOT NULL,
    memory_total_bytes        bigint           NOT NULL,
    swap_used_bytes_min       bigint           NOT NULL,
    swap_used_bytes_avg       bigint           NOT NULL,
    swap_used_bytes_max       bigint           NOT NULL,
    swap_total_bytes          bigint           NOT NULL,
    process_count_min         bigint           NOT NULL,
    process_count_avg         bigint           NOT NULL,
    process_count_max         bigint           NOT NULL,
    network_rx_bytes_increase bigint           NOT NULL,
    network_tx_bytes_increase bigint           NOT NULL,
    fullest_disk_percent      double precision,
    sample_count              integer          NOT NULL,
    fullest_disk_mount_point  text,
    PRIMARY KEY (host_id, hour)
) PARTITION BY RANGE (hour);

COMMENT ON TABLE host_metrics_hourly IS
    'Every host''s samples by the UTC hour, computed anew from them within minutes of any change; one partition for each UTC month. Rows outlive the samples.';
COMMENT ON COLUMN host_metrics_hourly.host_id IS 'The host.';
COMMENT ON COLUMN host_metrics_hourly.hour IS 'When the hour begins.';
COMMENT ON COLUMN host_metrics_hourly.first_at IS 'Time of the hour''s first sample.';
COMMENT ON COLUMN host_metrics_hourly.last_at IS 'Time of the hour''s last sample.';
COMMENT ON COLUMN host_metrics_hourly.counters_from IS
    'Time of the sample that the increases are counted from: the last one of the hour before, or, where that hour has none, the first of this one. A rate is an increase divided by last_at - counters_from.';
COMMENT ON COLUMN host_metrics_hourly.cpu_percent_min IS 'CPU use over all processors, 0 to 100: least.';
COMMENT ON COLUMN host_metrics_hourly.cpu_percent_avg IS 'CPU use: mean over the samples.';
COMMENT ON COLUMN host_metrics_hourly.cpu_percent_max IS 'CPU use: greatest.';
COMMENT ON COLUMN host_metrics_hourly.load_1m_min IS 'Load average over one minute: least.';
COMMENT ON COLUMN host_metrics_hourly.load_1m_avg IS 'Load average over one minute: mean.';
COMMENT ON COLUMN host_metrics_hourly.load_1m_max IS 'Load average over one minute: greatest.';
COMMENT ON COLUMN host_metrics_hourly.load_5m_min IS 'Load average over five minutes: least.';
COMMENT ON COLUMN host_metrics_hourly.load_5m_avg IS 'Load average over five minutes: mean.';
COMMENT ON COLUMN host_metrics_hourly.load_5m_max IS 'Load average over five minutes: greatest.';
COMMENT ON COLUMN host_metrics_hourly.load_15m_min IS 'Load average over fifteen minutes: least.';
COMMENT ON COLUMN host_metrics_hourly.load_15m_avg IS 'Load average over fifteen minutes: mean.';
COMMENT ON COLUMN host_metrics_hourly.load_15m_max IS 'Load average over fifteen minutes: greatest.';
COMMENT ON COLUMN host_metrics_hourly.memory_used_bytes_min IS 'Memory in use: least.';
COMMENT ON COLUMN host_metrics_hourly.memory_used_bytes_avg IS 'Memory in use: mean, rounded.';
COMMENT ON COLUMN host_metrics_hourly.memory_used_bytes_max IS 'Memory in use: greatest.';
COMMENT ON COLUMN host_metrics_hourly.memory_total_bytes IS 'Memory installed: the most that was said.';
COMMENT ON COLUMN host_metrics_hourly.swap_used_bytes_min IS 'Swap in use: least.';
COMMENT ON COLUMN host_metrics_hourly.swap_used_bytes_avg IS 'Swap in use: mean, rounded.';
COMMENT ON COLUMN host_metrics_hourly.swap_used_bytes_max IS 'Swap in use: greatest.';
COMMENT ON COLUMN host_metrics_hourly.swap_total_bytes IS 'Swap configured: the most that was said.';
COMMENT ON COLUMN host_metrics_hourly.process_count_min IS 'Processes: least.';
COMMENT ON COLUMN host_metrics_hourly.process_count_avg IS 'Processes: mean, rounded.';
COMMENT ON COLUMN host_metrics_hourly.process_count_max IS 'Processes: greatest.';
COMMENT ON COLUMN host_metrics_hourly.network_rx_bytes_increase IS 'Bytes received from counters_from to last_at; a counter that went down began anew at 0.';
COMMENT ON COLUMN host_metrics_hourly.network_tx_bytes_increase IS 'Bytes sent from counters_from to last_at; a counter that went down began anew at 0.';
COMMENT ON COLUMN host_metrics_hourly.fullest_disk_percent IS 'Greatest use of a file system, 0 to 100; null where none was named.';
COMMENT ON COLUMN host_metrics_hourly.sample_count IS 'How many samples the hour has.';
COMMENT ON COLUMN host_metrics_hourly.fullest_disk_mount_point IS 'Which file system that was.';

-- Appended to by who stores samples, in the same transaction: nobody waits for anybody,
-- and who sees a change sees its samples. The rollup takes what it sees; what commits
-- while it runs stays for the next.
CREATE TABLE rollup_changes (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    hour     timestamptz NOT NULL,
    host_ids uuid[]      NOT NULL
);
ALTER TABLE rollup_changes ALTER host_ids SET STORAGE EXTERNAL; -- Random ids do not compress.

COMMENT ON TABLE rollup_changes IS 'Where samples were added since the last rollup: one row for each batch and hour.';
COMMENT ON COLUMN rollup_changes.id IS 'In order of writing.';
COMMENT ON COLUMN rollup_changes.at IS 'When it was written.';
COMMENT ON COLUMN rollup_changes.hour IS 'The hour that the samples fell into.';
COMMENT ON COLUMN rollup_changes.host_ids IS 'Whose they are.';

CREATE TABLE rollups_due (
    hour    timestamptz NOT NULL,
    host_id uuid        NOT NULL,
    PRIMARY KEY (hour, host_id)
);

COMMENT ON TABLE rollups_due IS 'What the rollup still has to compute, each host and hour once. Only who holds the rollup''s lock touches it.';
COMMENT ON COLUMN rollups_due.hour IS 'The hour.';
COMMENT ON COLUMN rollups_due.host_id IS 'The host.';

-- Makes the month's partition that a rollup falls into. A row of the running hour is
-- written a dozen times: what that leaves behind is removed often.
CREATE FUNCTION rollups_partition_ensure(hour timestamptz) RETURNS void
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE month timestamptz := date_trunc('month', hour);
BEGIN
    IF partition_ensure('host_metrics_hourly', to_char(month, 'YYYYMM'), month, month + interval '1 month') THEN
        EXECUTE format('ALTER TABLE %I SET (autovacuum_vacuum_scale_factor = 0.02)',
                       'host_metrics_hourly_' || to_char(month, 'YYYYMM'));
    END IF;
END $$;

-- One host's hour as its samples say; no row where there are none, so that nothing is
-- ever computed from history that has been dropped. Loads have no upper bound on the
-- wire, and sums no room beyond 64 bits: absurd ones are cut, so that one liar's numbers
-- do not fail everybody's rollup.
CREATE FUNCTION host_metrics_hour(host uuid, starts timestamptz)
    RETURNS SETOF host_metrics_hourly LANGUAGE sql STABLE AS $$
    SELECT host, starts, min(s.sampled_at), max(s.sampled_at), min(coalesce(s.before_at, s.sampled_at)),
           min(s.cpu_percent), avg(s.cpu_percent), max(s.cpu_percent),
           min(s.load_1m), avg(least(s.load_1m, 1e100)), max(s.load_1m),
           min(s.load_5m), avg(least(s.load_5m, 1e100)), max(s.load_5m),
           min(s.load_15m), avg(least(s.load_15m, 1e100)), max(s.load_15m),
           min(s.memory_used_bytes), avg(s.memory_used_bytes)::bigint, max(s.memory_used_bytes), max(s.memory_total_bytes),
           min(s.swap_used_bytes), avg(s.swap_used_bytes)::bigint, max(s.swap_used_bytes), max(s.swap_total_bytes),
           min(s.process_count), avg(s.process_count)::bigint, max(s.process_count),
           least(coalesce(sum(s.network_rx_bytes - CASE WHEN s.network_rx_bytes >= s.rx_before THEN s.rx_before ELSE 0 END)
                          FILTER (WHERE s.before_at IS NOT NULL), 0), 9223372036854775807)::bigint,
           least(coalesce(sum(s.network_tx_bytes - CASE WHEN s.network_tx_bytes >= s.tx_before THEN s.tx_before ELSE 0 END)
                          FILTER (WHERE s.before_at IS NOT NULL), 0), 9223372036854775807)::bigint,
           max(fullest.percent), count(*)::integer,
           (array_agg(fullest.mount_point ORDER BY fullest.percent DESC NULLS LAST, fullest.mount_point COLLATE "C"))[1]
      FROM (SELECT m.*, lag(m.sampled_at) OVER in_order AS before_at,
                   lag(m.network_rx_bytes) OVER in_order AS rx_before, lag(m.network_tx_bytes) OVER in_order AS tx_before
              FROM ((SELECT * FROM host_metrics
                      WHERE host_id = host AND sampled_at >= starts - interval '1 hour' AND sampled_at < starts
                      ORDER BY sampled_at DESC, agent_id DESC, seq DESC LIMIT 1)
                    UNION ALL
                    SELECT * FROM host_metrics
                     WHERE host_id = host AND sampled_at >= starts AND sampled_at < starts + interval '1 hour') m
            WINDOW in_order AS (ORDER BY m.sampled_at, m.agent_id, m.seq)) s
      LEFT JOIN LATERAL (
           SELECT least(100 * d.used_bytes::double precision / d.total_bytes, 100) AS percent, d.mount_point
             FROM jsonb_to_recordset(s.disks) AS d(mount_point text, used_bytes bigint, total_bytes bigint)
            WHERE d.total_bytes > 0
            ORDER BY percent DESC, d.mount_point COLLATE "C" LIMIT 1) fullest ON true
     WHERE s.sampled_at >= starts
    HAVING count(*) > 0;
$$;

REVOKE EXECUTE ON FUNCTION
    partition_ensure, metrics_partitions_ensure, rollups_partition_ensure, host_metrics_hour FROM PUBLIC;
