-- History: compacted samples, stored rollups, and how both are read.
--
-- A reader takes a host's samples from the chunks, and from samples_visible those that are not compacted yet. All views here are made of
-- views and of functions that read nothing but their arguments, so SELECT on a view is the only right that its reader needs.

-- ---- Compacted samples ---------------------------------------------------------------------------

CREATE TABLE sample_chunks (
    host_no            integer     NOT NULL,
    hour               timestamptz NOT NULL,
    agent_no           integer     NOT NULL,
    shape              uuid        NOT NULL,
    first_seq          bigint      NOT NULL, samples integer NOT NULL,
    at                 integer[]   NOT NULL, seqs bigint[],
    cpu_percent        real[]      NOT NULL,
    load_1m real[] NOT NULL, load_5m real[] NOT NULL, load_15m real[] NOT NULL,
    memory_used_bytes  bigint[]    NOT NULL, memory_total_bytes bigint[] NOT NULL,
    swap_used_bytes    bigint[]    NOT NULL, swap_total_bytes   bigint[] NOT NULL,
    uptime_seconds     bigint[]    NOT NULL, process_count integer[] NOT NULL,
    network_rx_bytes   bigint[]    NOT NULL, network_tx_bytes   bigint[] NOT NULL,
    parts_series       bigint[], parts_steps bytea,
    PRIMARY KEY (host_no, hour, agent_no, shape)
) PARTITION BY RANGE (hour);

COMMENT ON TABLE sample_chunks IS 'Compacted samples: one row for each hour of a host, agent and shape, and one array for each value, in the order of the numbers; one partition for each UTC day. Not for readers: see the view host_metrics.';
COMMENT ON COLUMN sample_chunks.hour IS 'The hour that the samples were taken in.';
COMMENT ON COLUMN sample_chunks.first_seq IS 'The lowest number among the samples.';
COMMENT ON COLUMN sample_chunks.samples IS 'How many there are.';
COMMENT ON COLUMN sample_chunks.at IS 'When they were taken: microseconds from the middle of the hour.';
COMMENT ON COLUMN sample_chunks.seqs IS 'Their numbers minus first_seq; null where they are consecutive.';
COMMENT ON COLUMN sample_chunks.uptime_seconds IS 'Time since boot, minus the whole seconds in at: about the same number in all samples.';
COMMENT ON COLUMN sample_chunks.parts_series IS 'The packed values of the parts: the first value of each part, then the last of each, the units, the least steps in units, the widths in bytes. Null where the shape lists none.';
COMMENT ON COLUMN sample_chunks.parts_steps IS 'The packed steps, part by part: the lowest bytes of all steps, then the second ones, up to the width; see parts_unpack.';
SELECT comments_copy('sample_chunks', 'samples_open');

-- lz4, an option of the server's build, costs next to nothing where there is little to find. The other columns are smaller with the usual method.
DO $$
BEGIN
    EXECUTE (SELECT 'ALTER TABLE sample_chunks ' || string_agg(format('ALTER %I SET COMPRESSION lz4', attname), ', ')
               FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
              WHERE attrelid = 'sample_chunks'::regclass AND typcategory = 'A' AND attname NOT IN ('process_count', 'parts_series'));
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'this server has no lz4';
END $$;

-- ANALYZE would count the elements of every array, for statistics that no query uses. A new partition does not inherit this.
CREATE FUNCTION chunks_without_statistics(chunks regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE (SELECT format('ALTER TABLE %s %s', chunks, string_agg(format('ALTER %I SET STATISTICS 0', attname), ', '))
               FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
              WHERE attrelid = chunks AND attnum > 0 AND NOT attisdropped AND (typcategory = 'A' OR typname = 'bytea'));
END $$;
COMMENT ON FUNCTION chunks_without_statistics IS 'Keeps ANALYZE from the values of sample_chunks or one of its partitions.';
SELECT chunks_without_statistics('sample_chunks');

-- A series: the first value and, for each further sample, a step of unit * (least + what is stored). Steps of up to six bytes are added as
-- integers. Wider ones, of counters that began again, are added as numerics, because a stored step may be 2^63.
--
-- Whatever a chunk holds, a query over many hosts must not fail: what cannot be unpacked has no values.
CREATE FUNCTION parts_unpack(series bigint[], steps bytea, samples integer, first bigint, last bigint)
    RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    kinds integer; count integer; place integer; bytes bytea;
    unit bigint; least bigint; width integer; step numeric;
    these bigint[]; parts bigint[] := '{}';
BEGIN
    kinds := cardinality(series) / 5; count := samples - 1;
    place := count * (SELECT coalesce(sum(w), 0) FROM unnest(series[4 * kinds + 1 : 4 * kinds + first - 1]) w);
    bytes := steps || ''::bytea; -- Decompressed once.
    FOR n IN first .. last LOOP
        unit := series[2 * kinds + n];
        least := series[3 * kinds + n];
        width := series[4 * kinds + n];
        these := array_fill(series[n], ARRAY[samples]);
        IF width BETWEEN 1 AND 6 THEN
            FOR i IN 1 .. count LOOP
                these[i + 1] := these[i] + unit * (least + get_byte(bytes, place + i - 1)
                    + CASE WHEN width > 1 THEN (get_byte(bytes, place + count + i - 1) << 8)
                    + CASE WHEN width > 2 THEN (get_byte(bytes, place + 2 * count + i - 1) << 16)
                    + CASE WHEN width > 3 THEN (get_byte(bytes, place + 3 * count + i - 1)::bigint << 24)
                    + CASE WHEN width > 4 THEN (get_byte(bytes, place + 4 * count + i - 1)::bigint << 32)
                    + CASE WHEN width > 5 THEN (get_byte(bytes, place + 5 * count + i - 1)::bigint << 40)
                      ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END);
            END LOOP;
        ELSIF width > 6 THEN
            FOR i IN 1 .. count LOOP
                step := least;
                FOR k IN 0 .. width - 1 LOOP
                    step := step + get_byte(bytes, place + k * count + i - 1) * 256::numeric ^ k;
                END LOOP;
                these[i + 1] := these[i] + unit * step;
            END LOOP;
        END IF;
        place := place + width * count;
        parts := parts || these;
    END LOOP;
    RETURN parts;
EXCEPTION WHEN OTHERS THEN
    RETURN '{}';
END $$;
COMMENT ON FUNCTION parts_unpack IS 'The values of some neighbouring parts in a chunk, part by part; none if they are damaged.';

-- ---- Samples -------------------------------------------------------------------------------------

-- The disks are the first parts of a shape, each followed by its size.
CREATE FUNCTION disk_parts(list jsonb) RETURNS integer LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT least(coalesce(max(p.n) + 1, 0), jsonb_array_length(list))::integer FROM shape_parts(list) p WHERE p.kind = 'disk_used';
END;
COMMENT ON FUNCTION disk_parts IS 'How many numbers at the beginning of a sample''s parts are of disks.';

-- PostgreSQL cannot derive the hours of a span from sampled_at. A query without host_samples, or without a condition on hour, compares the
-- times of all samples of the host, and unpacks what it returns.
--
-- Each value that all samples of a chunk share is a query in parentheses: it is computed when the first row that has passed the conditions
-- needs it, and kept for the other rows of the chunk. For that the query around it must stay a subquery. ORDER BY sees to it, and sorts
-- nothing, because all its rows have one hour. OFFSET 0 has the times compared before anything else is computed.
CREATE VIEW host_metrics AS
    SELECT v.host_id, y.sampled_at, n.agent_id, y.seq, y.cpu_percent, y.load_1m, y.load_5m, y.load_15m,
           y.memory_used_bytes, y.memory_total_bytes, y.swap_used_bytes, y.swap_total_bytes,
           y.uptime_seconds, y.process_count, y.network_rx_bytes, y.network_tx_bytes, y.disks, c.hour
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.shape = c.shape
     CROSS JOIN LATERAL (
           SELECT x.sampled_at, c.first_seq + coalesce((SELECT c.seqs || '{}'::bigint[])[x.i], x.i - 1) AS seq,
                  (SELECT c.cpu_percent || '{}'::real[])[x.i]::float8 AS cpu_percent, (SELECT c.load_1m || '{}'::real[])[x.i]::float8 AS load_1m,
                  (SELECT c.load_5m || '{}'::real[])[x.i]::float8 AS load_5m, (SELECT c.load_15m || '{}'::real[])[x.i]::float8 AS load_15m,
                  (SELECT c.memory_used_bytes || '{}'::bigint[])[x.i] AS memory_used_bytes,
                  (SELECT c.memory_total_bytes || '{}'::bigint[])[x.i] AS memory_total_bytes,
                  (SELECT c.swap_used_bytes || '{}'::bigint[])[x.i] AS swap_used_bytes, (SELECT c.swap_total_bytes || '{}'::bigint[])[x.i] AS swap_total_bytes,
                  (SELECT c.uptime_seconds || '{}'::bigint[])[x.i] + x.at / 1000000 AS uptime_seconds,
                  (SELECT c.process_count || '{}'::integer[])[x.i]::bigint AS process_count,
                  (SELECT c.network_rx_bytes || '{}'::bigint[])[x.i] AS network_rx_bytes, (SELECT c.network_tx_bytes || '{}'::bigint[])[x.i] AS network_tx_bytes,
                  coalesce((SELECT ARRAY (SELECT format(s.disks, VARIADIC ARRAY (
                                                     SELECT coalesce(w.parts[part * w.samples + i]::text, 'null') FROM generate_series(0, w.kinds - 1) part))::jsonb
                                            FROM generate_series(1, w.samples) i)
                              FROM (SELECT parts_unpack(c.parts_series, c.parts_steps, cardinality(c.at), 1, disk_parts(s.parts)) AS parts,
                                           cardinality(c.at) AS samples, disk_parts(s.parts) AS kinds OFFSET 0) w)[x.i], '[]') AS disks
             FROM (SELECT each.i, each.at, c.hour + interval '30 minutes' + each.at * interval '1 microsecond' AS sampled_at
                     FROM (SELECT generate_subscripts(c.at, 1) AS i, unnest(c.at) AS at) each
                   OFFSET 0) x
            ORDER BY c.hour) y
     UNION ALL
    SELECT v.host_id, o.sampled_at, n.agent_id, o.seq, o.cpu_percent::float8, o.load_1m::float8, o.load_5m::float8, o.load_15m::float8,
           o.memory_used_bytes, o.memory_total_bytes, o.swap_used_bytes, o.swap_total_bytes,
           o.uptime_seconds, o.process_count::bigint, o.network_rx_bytes, o.network_tx_bytes,
           coalesce(disks_json(s.disks, s.parts, o.parts), '[]'),
           date_trunc('hour', o.sampled_at, 'UTC')
      FROM host_vitals v
      JOIN samples_visible o ON o.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
      LEFT JOIN sample_shapes s ON s.shape = o.shape;
COMMENT ON VIEW host_metrics IS 'Every sample of every host, once. A span of one host is read fastest by host_samples.';
COMMENT ON COLUMN host_metrics.host_id IS 'The host.';
COMMENT ON COLUMN host_metrics.agent_id IS 'The agent that took it.';
COMMENT ON COLUMN host_metrics.seq IS 'The agent''s number of the sample: (agent_id, seq) stands here at most once.';
COMMENT ON COLUMN host_metrics.disks IS 'File systems: [{mount_point, device, fs_type, total_bytes, used_bytes}].';
COMMENT ON COLUMN host_metrics.hour IS 'The UTC hour of sampled_at. With a condition on it PostgreSQL skips the other hours.';
SELECT comments_copy('host_metrics', 'samples_open');

CREATE FUNCTION host_samples(host uuid, since timestamptz, until timestamptz) RETURNS SETOF host_metrics LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT * FROM host_metrics m
     WHERE m.host_id = host AND m.sampled_at >= since AND m.sampled_at <= until
       AND m.hour >= date_bin(interval '1 hour', since, timestamptz 'epoch') AND m.hour <= until;
END;
COMMENT ON FUNCTION host_samples IS 'The samples of one host from one time to another. Reads only the hours in between.';

-- To plan this takes longer than to read an hour, so it is a function whose plan a session keeps.
CREATE FUNCTION host_chunks_loose(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (hour timestamptz, agent_id uuid, sampled_at timestamptz[], seq bigint[],
                   cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
                   memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
                   uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[], mount_points text[], disk_bytes bigint[])
    LANGUAGE plpgsql STABLE ROWS 100 SET search_path = pg_catalog, public, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT date_bin(interval '1 hour', o.sampled_at, timestamptz 'epoch'), n.agent_id, ARRAY[o.sampled_at], ARRAY[o.seq],
           ARRAY[o.cpu_percent], ARRAY[o.load_1m], ARRAY[o.load_5m], ARRAY[o.load_15m],
           ARRAY[o.memory_used_bytes], ARRAY[o.memory_total_bytes], ARRAY[o.swap_used_bytes], ARRAY[o.swap_total_bytes],
           ARRAY[o.uptime_seconds], ARRAY[o.process_count], ARRAY[o.network_rx_bytes], ARRAY[o.network_tx_bytes],
           ARRAY(SELECT p.name FROM shape_parts(s.parts) p WHERE p.kind = 'disk_used'), o.parts[1 : disk_parts(s.parts)]
      FROM host_vitals v
      JOIN samples_visible o ON o.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
      LEFT JOIN sample_shapes s ON s.shape = o.shape
     WHERE v.host_id = host AND o.sampled_at >= since AND o.sampled_at <= until;
END $$;
COMMENT ON FUNCTION host_chunks_loose IS 'The samples of one host that are in no chunk, as host_chunks returns them.';

-- An hour that is compacted is a row, or several if it has several agents or shapes; a sample that is not compacted yet is a row of its own.
-- The rows are of whole hours, so a reader ignores the samples before `since` and after `until`. One SELECT, which the planner inlines: an
-- array that a query does not select is neither decompressed nor computed.
CREATE FUNCTION host_chunks(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (hour timestamptz, agent_id uuid, sampled_at timestamptz[], seq bigint[],
                   cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
                   memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
                   uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[], mount_points text[], disk_bytes bigint[])
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.hour, n.agent_id, ARRAY(SELECT (SELECT c.hour + interval '30 minutes') + unnest(c.at) * interval '1 microsecond'),
           CASE WHEN c.seqs IS NULL THEN ARRAY(SELECT generate_series(c.first_seq, c.first_seq + cardinality(c.at) - 1))
                ELSE ARRAY(SELECT c.first_seq + unnest(c.seqs)) END,
           c.cpu_percent, c.load_1m, c.load_5m, c.load_15m,
           c.memory_used_bytes, c.memory_total_bytes, c.swap_used_bytes, c.swap_total_bytes,
           ARRAY(SELECT unnest(c.uptime_seconds) + unnest(c.at) / 1000000), c.process_count, c.network_rx_bytes, c.network_tx_bytes,
           ARRAY(SELECT p.name FROM shape_parts(s.parts) p WHERE p.kind = 'disk_used'),
           parts_unpack(c.parts_series, c.parts_steps, cardinality(c.at), 1, disk_parts(s.parts))
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.shape = c.shape
     WHERE v.host_id = host AND c.hour >= date_bin(interval '1 hour', since, timestamptz 'epoch') AND c.hour <= until
     UNION ALL
    SELECT * FROM host_chunks_loose(host, since, until);
END;
COMMENT ON FUNCTION host_chunks IS 'The samples of one host from one time to another as arrays, in rows of whole hours or single samples. disk_bytes has, of one mount point after the other, the bytes in use in all samples of the row, then the total bytes in all of them.';
REVOKE EXECUTE ON FUNCTION host_samples, host_chunks, host_chunks_loose, chunks_without_statistics FROM PUBLIC;

CREATE VIEW host_metric_parts AS
    SELECT v.host_id, c.hour + interval '30 minutes' + u.at * interval '1 microsecond' AS sampled_at, p.kind, p.name, u.value
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      JOIN sample_shapes s ON s.shape = c.shape
      -- OFFSET 0: decompressed once, and not again for every part.
     CROSS JOIN LATERAL (SELECT c.parts_series || '{}'::bigint[] AS series, c.parts_steps || ''::bytea AS steps OFFSET 0) packed
     CROSS JOIN LATERAL shape_parts(s.parts) p
     CROSS JOIN LATERAL (
           SELECT unnest(c.at) AS at, unnest(parts_unpack(packed.series, packed.steps, cardinality(c.at), p.n, p.n)) AS value) u
     UNION ALL
    SELECT v.host_id, o.sampled_at, p.kind, p.name, o.parts[p.n]
      FROM host_vitals v
      JOIN samples_visible o ON o.host_no = v.host_no
      JOIN sample_shapes s ON s.shape = o.shape
     CROSS JOIN LATERAL shape_parts(s.parts) p;
COMMENT ON VIEW host_metric_parts IS 'What samples say about file systems, block devices, interfaces and other parts. Read it by host_id.';
COMMENT ON COLUMN host_metric_parts.host_id IS 'The host.';
COMMENT ON COLUMN host_metric_parts.sampled_at IS 'When the sample was taken, as the agent says.';
COMMENT ON COLUMN host_metric_parts.kind IS 'What is measured, such as disk_used.';
COMMENT ON COLUMN host_metric_parts.name IS 'Of which part: a mount point, a device, an interface.';
COMMENT ON COLUMN host_metric_parts.value IS 'The value, in the unit of its kind.';

-- ---- Rollups -------------------------------------------------------------------------------------

CREATE TABLE host_rollups (
    host_id uuid NOT NULL, hour timestamptz NOT NULL,
    first_at timestamptz NOT NULL, last_at timestamptz NOT NULL, counters_from timestamptz NOT NULL,
    cpu_percent_min double precision NOT NULL, cpu_percent_avg double precision NOT NULL, cpu_percent_max double precision NOT NULL,
    load_1m_min     double precision NOT NULL, load_1m_avg     double precision NOT NULL, load_1m_max     double precision NOT NULL,
    load_5m_min     double precision NOT NULL, load_5m_avg     double precision NOT NULL, load_5m_max     double precision NOT NULL,
    load_15m_min    double precision NOT NULL, load_15m_avg    double precision NOT NULL, load_15m_max    double precision NOT NULL,
    memory_used_bytes_min bigint NOT NULL, memory_used_bytes_avg bigint NOT NULL, memory_used_bytes_max bigint NOT NULL,
    memory_total_bytes bigint NOT NULL, swap_total_bytes bigint NOT NULL,
    swap_used_bytes_min   bigint NOT NULL, swap_used_bytes_avg   bigint NOT NULL, swap_used_bytes_max   bigint NOT NULL,
    process_count_min     bigint NOT NULL, process_count_avg     bigint NOT NULL, process_count_max     bigint NOT NULL,
    network_rx_bytes_increase bigint NOT NULL, network_tx_bytes_increase bigint NOT NULL,
    fullest_disk_percent double precision, sample_count integer NOT NULL, fullest_disk_mount_point text,
    shape uuid NOT NULL, figures bigint[] NOT NULL,
    PRIMARY KEY (host_id, hour)
) PARTITION BY RANGE (hour);

COMMENT ON TABLE host_rollups IS 'Rollups of compacted hours; one partition for each UTC month. Rows outlive the samples. Readers use host_metrics_hourly, which computes the hours that are not compacted yet.';
COMMENT ON COLUMN host_rollups.host_id IS 'The host.';
COMMENT ON COLUMN host_rollups.hour IS 'When the hour begins.';
COMMENT ON COLUMN host_rollups.first_at IS 'Time of the hour''s first sample.';
COMMENT ON COLUMN host_rollups.last_at IS 'Time of the hour''s last sample.';
COMMENT ON COLUMN host_rollups.counters_from IS 'Time of the sample that the increases are counted from: the last one of the hour before, or, where that hour has none, the first of this one. A rate is an increase divided by last_at - counters_from.';
COMMENT ON COLUMN host_rollups.memory_total_bytes IS 'Memory installed: the most that was said.';
COMMENT ON COLUMN host_rollups.swap_total_bytes IS 'Swap configured: the most that was said.';
COMMENT ON COLUMN host_rollups.network_rx_bytes_increase IS 'Bytes received from counters_from to last_at. The counter begins at 0 after a boot; where it falls without one, nothing is added.';
COMMENT ON COLUMN host_rollups.network_tx_bytes_increase IS 'Bytes sent from counters_from to last_at. The counter begins at 0 after a boot; where it falls without one, nothing is added.';
COMMENT ON COLUMN host_rollups.fullest_disk_percent IS 'Greatest use of a file system, 0 to 100; null where none was named.';
COMMENT ON COLUMN host_rollups.sample_count IS 'How many samples the hour has.';
COMMENT ON COLUMN host_rollups.fullest_disk_mount_point IS 'Which file system that was.';
COMMENT ON COLUMN host_rollups.shape IS 'The parts that figures is about: the shape of all samples or, where they have several, a list of its own in sample_shapes.';
COMMENT ON COLUMN host_rollups.figures IS 'For each part {least, mean, greatest} of a gauge, {value, null, null} of one that did not change, {null, increase, null} of a counter. Readers use host_metric_parts_hourly.';
DO $$
BEGIN
    EXECUTE (SELECT string_agg(format('COMMENT ON COLUMN host_rollups.%I IS %L', attname || suffix,
                                      rtrim(col_description(attrelid, attnum), '.') || of), '; ')
               FROM pg_attribute CROSS JOIN (VALUES ('_min', ': least.'), ('_avg', ': mean over the samples.'), ('_max', ': greatest.')) AS figure (suffix, of)
              WHERE attrelid = 'samples_open'::regclass
                AND attname IN ('cpu_percent', 'load_1m', 'load_5m', 'load_15m', 'memory_used_bytes', 'swap_used_bytes', 'process_count'));
END $$;

-- The samples that computed rollups are made of: those of the hours that have loose samples and of the hours after these, whose increases
-- start from them. `counted` is false for the hours before, from which only the last readings of counters are needed. The host's loose
-- samples are read once, however many arrival hours they are in. OFFSET 0 looks up the chunks hour by hour: a list of hours would be looked
-- for in the partitions of all days.
CREATE VIEW samples_to_roll_up AS
    SELECT v.host_no, s.*
      FROM host_vitals v
     CROSS JOIN LATERAL (
           WITH loose AS MATERIALIZED (
               SELECT date_bin(interval '1 hour', o.sampled_at, timestamptz 'epoch') AS hour, o.* FROM samples_visible o WHERE o.host_no = v.host_no),
           near AS (
               SELECT l.hour + n * interval '1 hour' AS hour, max(n) >= 0 AS counted
                 FROM (SELECT DISTINCT hour FROM loose) l CROSS JOIN generate_series(-1, 1) n GROUP BY 1)
           SELECT hour, true AS counted, sampled_at, agent_no, seq, cpu_percent, load_1m, load_5m, load_15m,
                  memory_used_bytes, memory_total_bytes, swap_used_bytes, swap_total_bytes, uptime_seconds, process_count,
                  network_rx_bytes, network_tx_bytes, shape, parts
             FROM loose
            UNION ALL
           SELECT c.hour, near.counted, c.hour + interval '30 minutes' + x.at * interval '1 microsecond', c.agent_no, c.first_seq + coalesce(x.seq, x.i - 1),
                  x.cpu_percent, x.load_1m, x.load_5m, x.load_15m,
                  x.memory_used_bytes, x.memory_total_bytes, x.swap_used_bytes, x.swap_total_bytes, x.uptime_seconds + x.at / 1000000, x.process_count,
                  x.network_rx_bytes, x.network_tx_bytes, c.shape,
                  ARRAY(SELECT c.parts[part] FROM generate_series(x.i, cardinality(c.parts), nullif(cardinality(c.at), 0)) part)
             FROM near
            CROSS JOIN LATERAL (
                  SELECT *, parts_unpack(parts_series, parts_steps, cardinality(at), 1, cardinality(parts_series) / 5) AS parts
                    FROM sample_chunks WHERE host_no = v.host_no AND sample_chunks.hour = near.hour OFFSET 0) c
            CROSS JOIN LATERAL unnest(
                  c.at, c.seqs, c.cpu_percent, c.load_1m, c.load_5m, c.load_15m, c.memory_used_bytes, c.memory_total_bytes, c.swap_used_bytes,
                  c.swap_total_bytes, c.uptime_seconds, c.process_count, c.network_rx_bytes, c.network_tx_bytes) WITH ORDINALITY
                  x (at, seq, cpu_percent, load_1m, load_5m, load_15m, memory_used_bytes, memory_total_bytes, swap_used_bytes,
                     swap_total_bytes, uptime_seconds, process_count, network_rx_bytes, network_tx_bytes, i)) s;
COMMENT ON VIEW samples_to_roll_up IS 'The samples of hours whose rollup is computed when it is read, and of the hours before. Not for readers.';
COMMENT ON COLUMN samples_to_roll_up.hour IS 'The UTC hour of sampled_at.';
COMMENT ON COLUMN samples_to_roll_up.counted IS 'Whether the rollup of the hour is computed.';
SELECT comments_copy('samples_to_roll_up', 'samples_open');

-- What a counter has increased by since the reading before. After a boot it counts from 0. A total that falls without a boot has lost an
-- interface, and adds nothing; the counter of one thing began again at 0.
CREATE FUNCTION counter_increase(value bigint, uptime bigint, value_before bigint, uptime_before bigint, total boolean)
    RETURNS bigint LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN uptime < uptime_before THEN value
                WHEN value >= value_before THEN value - value_before
                WHEN total THEN 0
                WHEN value_before IS NOT NULL THEN value END;
COMMENT ON FUNCTION counter_increase IS 'What a counter has increased by between two readings; null if there is no reading before.';

-- A computed hour that has fewer samples than the stored one loses against it: some of its samples were dropped meanwhile.
CREATE VIEW host_metrics_hourly AS
    SELECT v.host_id, h.*
      FROM host_vitals v
     CROSS JOIN LATERAL (
           WITH sample AS MATERIALIZED (
               SELECT s.*, lag(uptime_seconds) OVER in_order AS uptime_before, lag(network_rx_bytes) OVER in_order AS rx_before,
                      lag(network_tx_bytes) OVER in_order AS tx_before,
                      CASE WHEN lag(hour) OVER in_order >= hour - interval '1 hour' THEN lag(sampled_at) OVER in_order END AS before_at
                 FROM samples_to_roll_up s WHERE s.host_no = v.host_no
               WINDOW in_order AS (ORDER BY sampled_at, agent_no, seq)),
           disk AS MATERIALIZED ( -- OFFSET 0, here and below: the few lists are looked up by their key, however many the fleet has.
               SELECT u.shape, p.n::integer, p.name FROM (SELECT DISTINCT shape FROM sample) u
                CROSS JOIN LATERAL (SELECT l.parts FROM sample_shapes l WHERE l.shape = u.shape OFFSET 0) l
                CROSS JOIN shape_parts(l.parts) p WHERE p.kind = 'disk_used'),
           fullest AS MATERIALIZED (
               SELECT DISTINCT ON (hour) hour, percent, name
                 FROM (SELECT s.hour, d.name, max(least(100 * s.parts[d.n]::float8 / s.parts[d.n + 1], 100)) AS percent
                         FROM sample s JOIN disk d ON d.shape = s.shape WHERE s.counted AND s.parts[d.n + 1] > 0 GROUP BY 1, 2) x
                ORDER BY hour, percent DESC, name COLLATE "C"),
           computed AS MATERIALIZED (
               SELECT hour, min(sampled_at) AS first_at, max(sampled_at) AS last_at, min(coalesce(before_at, sampled_at)) AS counters_from,
                      min(cpu_percent), avg(cpu_percent), max(cpu_percent), min(load_1m), avg(load_1m), max(load_1m),
                      min(load_5m), avg(load_5m), max(load_5m), min(load_15m), avg(load_15m), max(load_15m),
                      min(memory_used_bytes), avg(memory_used_bytes)::bigint, max(memory_used_bytes), max(memory_total_bytes),
                      min(swap_used_bytes), avg(swap_used_bytes)::bigint, max(swap_used_bytes), max(swap_total_bytes),
                      min(process_count), avg(process_count)::bigint, max(process_count),
                      least(coalesce(sum(counter_increase(network_rx_bytes, uptime_seconds, rx_before, uptime_before, true))
                                     FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint,
                      least(coalesce(sum(counter_increase(network_tx_bytes, uptime_seconds, tx_before, uptime_before, true))
                                     FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint,
                      (SELECT f.percent FROM fullest f WHERE f.hour = sample.hour), count(*)::integer,
                      (SELECT f.name FROM fullest f WHERE f.hour = sample.hour)
                 FROM sample WHERE counted GROUP BY hour
               HAVING count(*) >= coalesce((SELECT r.sample_count FROM host_rollups r WHERE r.host_id = v.host_id AND r.hour = sample.hour), 0))
           SELECT r.hour, r.first_at, r.last_at, r.counters_from, r.cpu_percent_min, r.cpu_percent_avg, r.cpu_percent_max,
                  r.load_1m_min, r.load_1m_avg, r.load_1m_max, r.load_5m_min, r.load_5m_avg, r.load_5m_max,
                  r.load_15m_min, r.load_15m_avg, r.load_15m_max,
                  r.memory_used_bytes_min, r.memory_used_bytes_avg, r.memory_used_bytes_max, r.memory_total_bytes,
                  r.swap_used_bytes_min, r.swap_used_bytes_avg, r.swap_used_bytes_max, r.swap_total_bytes,
                  r.process_count_min, r.process_count_avg, r.process_count_max, r.network_rx_bytes_increase, r.network_tx_bytes_increase,
                  r.fullest_disk_percent, r.sample_count, r.fullest_disk_mount_point
             FROM host_rollups r
            WHERE r.host_id = v.host_id AND NOT EXISTS (SELECT FROM computed c WHERE c.hour = r.hour)
            UNION ALL
           SELECT * FROM computed) h;
COMMENT ON VIEW host_metrics_hourly IS 'Every host''s samples by the UTC hour: stored for hours that are compacted, computed when read for the others. Read it by host_id.';
SELECT comments_copy('host_metrics_hourly', 'host_rollups');

CREATE VIEW host_metric_parts_hourly AS
    SELECT v.host_id, h.*
      FROM host_vitals v
     CROSS JOIN LATERAL (
           WITH sample AS MATERIALIZED (
               SELECT hour, counted, shape, parts, uptime_seconds, row_number() OVER (ORDER BY sampled_at, agent_no, seq) AS place
                 FROM samples_to_roll_up s WHERE s.host_no = v.host_no),
           computed AS MATERIALIZED (
               SELECT hour FROM sample WHERE counted GROUP BY hour
               HAVING count(*) >= coalesce((SELECT r.sample_count FROM host_rollups r WHERE r.host_id = v.host_id AND r.hour = sample.hour), 0)),
           listed AS MATERIALIZED ( -- Parts of several shapes are the same if their kinds and names are.
               SELECT u.shape, p.n::integer, p.kind, p.name, p.counter, dense_rank() OVER (ORDER BY p.kind COLLATE "C", p.name COLLATE "C") AS part
                 FROM (SELECT DISTINCT shape FROM sample) u
                CROSS JOIN LATERAL (SELECT l.parts FROM sample_shapes l WHERE l.shape = u.shape OFFSET 0) l
                CROSS JOIN shape_parts(l.parts) p),
           increase AS (
               SELECT x.hour, x.part, sum(counter_increase(value, uptime_seconds, value_before, uptime_before, false))
                          FILTER (WHERE hour_before >= hour - interval '1 hour') AS increase
                 FROM (SELECT s.hour, s.counted, l.part, s.parts[l.n] AS value, s.uptime_seconds, lag(s.parts[l.n]) OVER in_order AS value_before,
                              lag(s.uptime_seconds) OVER in_order AS uptime_before, lag(s.hour) OVER in_order AS hour_before
                         FROM sample s JOIN listed l ON l.shape = s.shape WHERE l.counter
                       WINDOW in_order AS (PARTITION BY l.part ORDER BY s.place, l.n)) x
                WHERE x.counted GROUP BY 1, 2),
           gauge AS (
               SELECT s.hour, l.part, min(s.parts[l.n]) AS least, avg(s.parts[l.n])::bigint AS mean, max(s.parts[l.n]) AS greatest
                 FROM sample s JOIN listed l ON l.shape = s.shape WHERE s.counted AND NOT l.counter GROUP BY 1, 2)
           SELECT r.hour, p.kind, p.name, r.figures[p.n][1] AS value_min,
                  CASE WHEN r.figures[p.n][1] IS NOT NULL THEN coalesce(r.figures[p.n][2], r.figures[p.n][1]) END AS value_avg,
                  coalesce(r.figures[p.n][3], r.figures[p.n][1]) AS value_max,
                  CASE WHEN r.figures[p.n][1] IS NULL THEN r.figures[p.n][2] END AS increase
             FROM host_rollups r JOIN sample_shapes l ON l.shape = r.shape CROSS JOIN shape_parts(l.parts) p
            WHERE r.host_id = v.host_id AND NOT EXISTS (SELECT FROM computed c WHERE c.hour = r.hour)
            UNION ALL
           SELECT f.hour, p.kind, p.name, f.least, f.mean, f.greatest, f.increase
             FROM (SELECT hour, part, least, mean, greatest, NULL AS increase FROM gauge
                    UNION ALL
                   SELECT hour, part, NULL, NULL, NULL, least(coalesce(increase, 0), 9223372036854775807)::bigint FROM increase) f
             JOIN computed USING (hour)
             JOIN (SELECT DISTINCT part, kind, name FROM listed) p USING (part)) h;
COMMENT ON VIEW host_metric_parts_hourly IS 'Parts by the UTC hour: gauges with their least, mean and greatest value, counters with their increase. Read it by host_id.';
COMMENT ON COLUMN host_metric_parts_hourly.value_min IS 'A gauge''s least value.';
COMMENT ON COLUMN host_metric_parts_hourly.value_avg IS 'A gauge''s mean over the samples, rounded.';
COMMENT ON COLUMN host_metric_parts_hourly.value_max IS 'A gauge''s greatest value.';
COMMENT ON COLUMN host_metric_parts_hourly.increase IS 'A counter''s increase since its last reading in the hour before. It counts from 0 after a boot, and where it falls.';
SELECT comments_copy('host_metric_parts_hourly', 'host_rollups'), comments_copy('host_metric_parts_hourly', 'host_metric_parts');
