-- Parts take less than half of their space: packed steps in chunks, numbers without names in rollups.

-- ---- How a chunk keeps the values of its parts ----------------------------------------------------

-- The values of one part, sample by sample, are a series. Most series stay as they are or move by small steps, so a chunk keeps a few numbers of
-- each series and, in as few bytes as the widest needs, its steps: the differences of neighbours.
--
--   parts_series  the first value of each series, then the last value of each, their units, their least steps, and their widths
--   parts_steps   series by series: the lowest byte of each step, then the second byte of each, and so on
--
-- What is stored of a step is (step - least step) / unit. The unit is the greatest common divisor of the steps: a file system is used in
-- blocks, a device is written in sectors. The width says how many bytes a step takes. A series that never changes has width 0 and no bytes at all.
-- The bytes of one place lie side by side, because they resemble each other and compress best so.
--
-- Where a series has steps of more than six bytes (a counter that began again), and in the chunks of earlier versions, parts_plain has
-- the values instead: all of the first part, then all of the second.
--
-- An instance of the previous version would take a packed chunk for one without values, and write it again so. It finds no column `parts` any
-- more: its compaction fails, and changes nothing, until it is replaced.
ALTER TABLE sample_chunks RENAME COLUMN parts TO parts_plain;
ALTER TABLE sample_chunks ADD COLUMN parts_series bigint[], ADD COLUMN parts_steps bytea;

COMMENT ON COLUMN sample_chunks.parts_plain IS
    'The values of the parts, where they are not packed: all of the first part, then all of the second; null where the shape lists none.';
COMMENT ON COLUMN sample_chunks.parts_series IS
    'The packed values of the parts: the first value of each part, then the last of each, the units, the least steps in units, the widths in bytes.';
COMMENT ON COLUMN sample_chunks.parts_steps IS
    'The packed steps, part by part: the lowest bytes of all steps, then the second ones, up to the width; see part_values.';

CREATE AGGREGATE greatest_divisor(bigint) (SFUNC = gcd, STYPE = bigint, INITCOND = '0');
COMMENT ON AGGREGATE greatest_divisor(bigint) IS 'The greatest common divisor; 0 if all are 0.';

-- Packs the values of all parts: a row for each sample, a column for each part. Values are not negative, so a step has room in 64 bits, but
-- the difference of two steps may not: that is why they are divided first. Nothing is packed if a series is too wide.
CREATE FUNCTION parts_pack(parts bigint[]) RETURNS TABLE (series bigint[], steps bytea) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN bool_and(width IS NOT NULL)
                THEN array_agg(first) || array_agg(last) || array_agg(unit) || array_agg(least) || array_agg(width) END,
           CASE WHEN bool_and(width IS NOT NULL) THEN string_agg(bytes, '') END
      FROM (SELECT x.these[1][1] AS first, x.these[x.samples][1] AS last, s.unit, s.least, w.width, b.bytes
              FROM generate_series(1, array_length(parts, 2)) n
             CROSS JOIN LATERAL (SELECT parts[:][n:n] AS these, array_length(parts, 1) AS samples OFFSET 0) x
             CROSS JOIN LATERAL (SELECT CASE WHEN x.these[2:x.samples][1:1] <> x.these[1:x.samples - 1][1:1]
                                             THEN ARRAY(SELECT unnest(x.these[2:x.samples][1:1]) - unnest(x.these[1:x.samples - 1][1:1])) END AS steps OFFSET 0) d
             CROSS JOIN LATERAL (SELECT coalesce(greatest_divisor(step), 0) AS unit, coalesce(min(step) / greatest_divisor(step), 0) AS least,
                                        max(step) / greatest_divisor(step)::numeric - min(step) / greatest_divisor(step) AS range
                                   FROM unnest(d.steps) step) s
             CROSS JOIN LATERAL (SELECT CASE WHEN s.unit = 0 THEN 0::bigint
                                             ELSE (SELECT min(bytes) FROM generate_series(1, 6) bytes WHERE s.range < 256 ^ bytes::numeric) END AS width OFFSET 0) w
             CROSS JOIN LATERAL ( -- What is inside depends on the place; so all bytes of one place come before those of the next.
                   SELECT string_agg(set_byte('\x00', 0, each.byte), '') AS bytes
                     FROM generate_series(0, w.width::integer - 1) place
                    CROSS JOIN LATERAL (SELECT ((unnest(d.steps) / s.unit - s.least) >> place * 8 & 255)::integer AS byte OFFSET 0) each) b
             ORDER BY n) packed;
END;

-- What is known of one part's series without its steps: its ends, whether it is known never to fall, and whether it is known never to change.
CREATE FUNCTION part_ends(parts bigint[], series bigint[], samples integer, n bigint)
    RETURNS TABLE (first bigint, last bigint, rises boolean, constant boolean) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT coalesce(series[n], parts[(n - 1) * samples + 1]), coalesce(series[kinds + n], parts[n * samples]),
           coalesce(series[3 * kinds + n] >= 0, false), coalesce(series[4 * kinds + n] = 0, false)
      FROM (SELECT cardinality(series) / 5 AS kinds OFFSET 0) k;
END;

-- The values of one part, packed or plain, in the order of the samples. In front of its steps are those of the parts before it: one for each sample
-- but the first, times their widths. The planner inlines this function, and whoever reads host_metrics may call it: it reads nothing but its arguments.
CREATE FUNCTION part_values(parts bigint[], series bigint[], steps bytea, samples integer, n bigint)
    RETURNS TABLE (these bigint[]) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN series IS NULL THEN parts[(n - 1) * samples + 1 : n * samples]
                WHEN s.width = 0 THEN array_fill(s.first, ARRAY[samples])
                ELSE ARRAY(SELECT s.first + s.unit * (sum(CASE WHEN i >= 0 THEN s.least + get_byte(steps, s.place + i)
                                      + CASE WHEN s.width > 1 THEN (get_byte(steps, s.place + s.count + i)::bigint << 8)
                                      + CASE WHEN s.width > 2 THEN (get_byte(steps, s.place + 2 * s.count + i)::bigint << 16)
                                      + CASE WHEN s.width > 3 THEN (get_byte(steps, s.place + 3 * s.count + i)::bigint << 24)
                                      + CASE WHEN s.width > 4 THEN (get_byte(steps, s.place + 4 * s.count + i)::bigint << 32)
                                      + CASE WHEN s.width > 5 THEN (get_byte(steps, s.place + 5 * s.count + i)::bigint << 40)
                                        ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END) OVER (ROWS UNBOUNDED PRECEDING))::bigint
                             FROM generate_series(-1, s.count - 1) i) END
      FROM (SELECT series[n] AS first, series[2 * kinds + n] AS unit, series[3 * kinds + n] AS least, series[4 * kinds + n] AS width, samples - 1 AS count,
                   (samples - 1) * (SELECT coalesce(sum(before), 0)::integer FROM unnest(series[4 * kinds + 1 : 4 * kinds + n - 1]) before) AS place
              FROM (SELECT cardinality(series) / 5 AS kinds) k OFFSET 0) s
    OFFSET 0;
END;

-- The values of the first parts of a chunk, part by part.
CREATE FUNCTION parts_values(parts bigint[], series bigint[], steps bytea, samples integer, kinds integer)
    RETURNS TABLE (parts bigint[]) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT ARRAY(SELECT unnest(v.these)
                   FROM generate_series(1, kinds) n
                  CROSS JOIN LATERAL part_values(parts_values.parts, series, steps, samples, n) v) OFFSET 0;
END;

-- What a chunk has of its parts, decompressed once and not again for every part; OFFSET sees to that.
CREATE FUNCTION chunk_parts(parts bigint[], series bigint[], steps bytea, at integer[])
    RETURNS TABLE (parts bigint[], series bigint[], steps bytea, samples integer, kinds integer) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN chunk_parts.parts IS NOT NULL THEN chunk_parts.parts || '{}'::bigint[] END,
           CASE WHEN chunk_parts.series IS NOT NULL THEN chunk_parts.series || '{}'::bigint[] END,
           chunk_parts.steps || ''::bytea, cardinality(at),
           coalesce(cardinality(chunk_parts.series) / 5, cardinality(chunk_parts.parts) / cardinality(at), 0) OFFSET 0;
END;

COMMENT ON FUNCTION parts_pack IS 'The values of samples'' parts as a chunk keeps them; null where a series has steps of more than six bytes.';
COMMENT ON FUNCTION part_ends IS 'The first and the last value of one part in a chunk, and whether it is known to rise or to stay.';
COMMENT ON FUNCTION part_values IS 'The values of one part in a chunk.';
COMMENT ON FUNCTION parts_values IS 'The values of the first parts in a chunk, part by part.';
COMMENT ON FUNCTION chunk_parts(bigint[], bigint[], bytea, integer[]) IS 'The parts of a chunk, decompressed, how many samples it has, and how many parts.';
REVOKE EXECUTE ON FUNCTION parts_pack, part_ends FROM PUBLIC;

-- The same as before, for bytes too.
CREATE OR REPLACE FUNCTION chunks_without_statistics(chunks regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE (SELECT format('ALTER TABLE %s %s', chunks, string_agg(format('ALTER %I SET STATISTICS 0', attname), ', '))
               FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
              WHERE attrelid = chunks AND attnum > 0 AND NOT attisdropped AND (typcategory = 'A' OR typname = 'bytea'));
END $$;
COMMENT ON FUNCTION chunks_without_statistics IS 'Keeps ANALYZE from the values of sample_chunks or one of its partitions.';

SELECT chunks_without_statistics('sample_chunks');
SELECT chunks_without_statistics(inhrelid) FROM pg_inherits WHERE inhparent = 'sample_chunks'::regclass;

-- ---- Reading parts -------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION sample_parts(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, kind text, name text, counter boolean, value bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.hour + interval '30 minutes' + u.at * interval '1 microsecond', c.agent_no, c.first_seq + coalesce(u.seq, u.i - 1),
           p.kind, p.name, p.counter, u.value
      FROM sample_chunks c
      JOIN sample_shapes sh USING (host_no, shape)
     CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
     CROSS JOIN LATERAL shape_parts(sh.parts) p
     CROSS JOIN LATERAL part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n) v
     CROSS JOIN LATERAL (
           SELECT unnest(c.at) AS at, unnest(c.seqs) AS seq, generate_subscripts(c.at, 1) AS i, unnest(v.these) AS value) u
     WHERE c.host_no = host AND c.hour >= since AND c.hour < until
    UNION ALL
    SELECT sampled_at, agent_no, seq, kind, name, counter, value FROM sample_parts_loose(host, since, until);
END;

CREATE OR REPLACE FUNCTION host_disk_samples(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_id uuid, seq bigint, mount_point text, used_bytes bigint, total_bytes bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT x.sampled_at, n.agent_id, c.first_seq + coalesce(c.seqs[x.i], x.i - 1), p.name, x.used_bytes, x.total_bytes
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
     CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
     CROSS JOIN LATERAL shape_parts(s.parts) p
     CROSS JOIN LATERAL part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n) used
     CROSS JOIN LATERAL part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n + 1) total
     CROSS JOIN LATERAL (
           SELECT c.hour + interval '30 minutes' + unnest(c.at) * interval '1 microsecond' AS sampled_at, generate_subscripts(c.at, 1) AS i,
                  unnest(used.these) AS used_bytes, unnest(total.these) AS total_bytes) x
     WHERE v.host_id = host AND p.kind = 'disk_used'
       AND c.hour >= date_bin(interval '1 hour', since, timestamptz 'epoch') AND c.hour <= until
       AND x.sampled_at >= since AND x.sampled_at <= until
     UNION ALL
    SELECT o.sampled_at, n.agent_id, o.seq, p.name, o.parts[p.n], o.parts[p.n + 1]
      FROM host_vitals v
     CROSS JOIN LATERAL samples_loose(v.host_no, since, until + interval '1 microsecond') o
      JOIN sample_shapes s ON s.host_no = o.host_no AND s.shape = o.shape
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
     CROSS JOIN LATERAL shape_parts(s.parts) p
     WHERE v.host_id = host AND p.kind = 'disk_used'
     UNION ALL
    SELECT m.sampled_at, m.agent_id, m.seq, d.mount_point, d.used_bytes, d.total_bytes
      FROM host_metrics_old m
     CROSS JOIN LATERAL jsonb_to_recordset(m.disks) AS d(mount_point text, used_bytes bigint, total_bytes bigint)
     WHERE m.host_id = host AND m.sampled_at >= since AND m.sampled_at <= until;
END;

-- The same as before, with the disks unpacked. The functions of ours in it may be called by everybody: they read nothing but their arguments.
CREATE OR REPLACE VIEW host_metrics AS
    SELECT m.host_id, m.sampled_at, m.agent_id, m.seq, m.cpu_percent, m.load_1m, m.load_5m, m.load_15m,
           m.memory_used_bytes, m.memory_total_bytes, m.swap_used_bytes, m.swap_total_bytes,
           m.uptime_seconds, m.process_count, m.network_rx_bytes, m.network_tx_bytes, m.disks,
           date_trunc('hour', m.sampled_at, 'UTC') AS hour
      FROM host_metrics_old m
     UNION ALL
    SELECT v.host_id, x.sampled_at, n.agent_id, c.first_seq + coalesce(a.seqs[x.i], x.i - 1),
           a.cpu_percent[x.i]::double precision, a.load_1m[x.i]::double precision,
           a.load_5m[x.i]::double precision, a.load_15m[x.i]::double precision,
           a.memory_used_bytes[x.i], a.memory_total_bytes[x.i], a.swap_used_bytes[x.i], a.swap_total_bytes[x.i],
           a.uptime_seconds[x.i] + x.at / 1000000, a.process_count[x.i]::bigint, a.network_rx_bytes[x.i], a.network_tx_bytes[x.i],
           coalesce(format(s.disks, VARIADIC p.parts[(x.i - 1) * p.kinds + 1 : x.i * p.kinds]::text[])::jsonb, '[]'), c.hour
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
     CROSS JOIN LATERAL (
           SELECT c.seqs || '{}'::bigint[] AS seqs, c.cpu_percent || '{}'::real[] AS cpu_percent,
                  c.load_1m || '{}'::real[] AS load_1m, c.load_5m || '{}'::real[] AS load_5m, c.load_15m || '{}'::real[] AS load_15m,
                  c.memory_used_bytes || '{}'::bigint[] AS memory_used_bytes, c.memory_total_bytes || '{}'::bigint[] AS memory_total_bytes,
                  c.swap_used_bytes || '{}'::bigint[] AS swap_used_bytes, c.swap_total_bytes || '{}'::bigint[] AS swap_total_bytes,
                  c.uptime_seconds || '{}'::bigint[] AS uptime_seconds, c.process_count || '{}'::integer[] AS process_count,
                  c.network_rx_bytes || '{}'::bigint[] AS network_rx_bytes, c.network_tx_bytes || '{}'::bigint[] AS network_tx_bytes
           OFFSET 0) a
     CROSS JOIN LATERAL ( -- Sample by sample instead of part by part, up to the last disk.
           SELECT ARRAY (SELECT w.parts[i % w.kinds * w.samples + i / w.kinds + 1]
                           FROM generate_series(0, w.kinds * w.samples - 1) i) AS parts, w.kinds
             FROM (SELECT disks.parts, whole.samples, listed.kinds
                     FROM chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
                    CROSS JOIN LATERAL (
                          SELECT coalesce(max(d.n) + 1, 0)::integer AS kinds FROM jsonb_array_elements(s.parts) WITH ORDINALITY d(part, n)
                           WHERE d.part ->> 'kind' = 'disk_used') listed
                    CROSS JOIN LATERAL parts_values(whole.parts, whole.series, whole.steps, whole.samples, listed.kinds) disks OFFSET 0) w
           OFFSET 0) p
     CROSS JOIN LATERAL (
           SELECT each.i, each.at, c.hour + interval '30 minutes' + each.at * interval '1 microsecond' AS sampled_at
             FROM (SELECT generate_subscripts(c.at, 1) AS i, unnest(c.at) AS at) each
           OFFSET 0) x
     UNION ALL
    SELECT v.host_id, o.sampled_at, n.agent_id, o.seq, o.cpu_percent::double precision, o.load_1m::double precision,
           o.load_5m::double precision, o.load_15m::double precision,
           o.memory_used_bytes, o.memory_total_bytes, o.swap_used_bytes, o.swap_total_bytes,
           o.uptime_seconds, o.process_count::bigint, o.network_rx_bytes, o.network_tx_bytes,
           coalesce(format(s.disks, VARIADIC o.parts::text[])::jsonb, '[]'), date_trunc('hour', o.sampled_at, 'UTC')
      FROM host_vitals v
      JOIN samples_visible o ON o.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = o.host_no AND s.shape = o.shape;

-- ---- Rollups -------------------------------------------------------------------------------------

-- The names of parts are most of a rollup's bytes, and the same in every hour. Where all samples of an hour have one shape, the
-- rollup refers to it, and its figures are numbers. Such a shape is kept as long as rollups are.
ALTER TABLE host_rollups ADD COLUMN shape bigint, ADD COLUMN figures bigint[];
COMMENT ON COLUMN host_rollups.shape IS 'The shape of all samples, which names the parts that figures is about; null where there are several, or none.';
COMMENT ON COLUMN host_rollups.figures IS
    'For each part of the shape {least, mean, greatest} of a gauge, {value, null, null} of one that did not change, {null, increase, null} of a counter. Readers use host_metric_parts_hourly.';
COMMENT ON COLUMN host_rollups.parts IS
    'The same where there is no shape: [kind, name, least, mean, greatest] of a gauge, [kind, name, value] of one that did not change, [kind, name, null, increase] of a counter.';

ALTER TABLE sample_shapes ADD COLUMN rolled_up boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN sample_shapes.rolled_up IS 'Whether a rollup refers to it: then it is kept as long as rollups are.';

-- The same as before. A packed counter that never falls increases by its last value minus its first: its steps are not read.
CREATE OR REPLACE FUNCTION host_hour_counters(host integer, starts timestamptz) RETURNS TABLE (kind text, name text, increase bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH chunk AS MATERIALIZED (
        SELECT c.at, sh.parts AS list, whole.*
          FROM sample_chunks c
          JOIN sample_shapes sh USING (host_no, shape)
         CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
         WHERE c.host_no = host AND c.hour = starts),
    plain AS MATERIALIZED (
        SELECT (SELECT count(*) = 1 AND bool_and(NOT EXISTS (
                           SELECT FROM (SELECT unnest(chunk.at) AS at, unnest(chunk.at[2:]) AS next) pair WHERE pair.next < pair.at)) FROM chunk)
               AND NOT EXISTS (SELECT FROM samples_loose(host, starts, starts + interval '1 hour')) AS yes),
    series AS MATERIALIZED (
        SELECT p.kind, p.name, e.first,
               CASE WHEN e.rises THEN e.last - e.first
                    ELSE (SELECT coalesce(sum(u.value - CASE WHEN u.value >= u.value_before THEN u.value_before ELSE 0 END), 0)
                            FROM part_values(chunk.parts, chunk.series, chunk.steps, chunk.samples, p.n) v
                           CROSS JOIN LATERAL (SELECT unnest(v.these[2:]) AS value, unnest(v.these) AS value_before) u
                           WHERE u.value IS NOT NULL) END AS increase
          FROM chunk
         CROSS JOIN LATERAL shape_parts(chunk.list) p
         CROSS JOIN LATERAL part_ends(chunk.parts, chunk.series, chunk.samples, p.n) e
         WHERE p.counter AND (SELECT yes FROM plain)),
    before AS (
        SELECT DISTINCT ON (kind COLLATE "C", name COLLATE "C") kind, name, value
          FROM (SELECT p.kind, p.name, last.at, c.agent_no,
                       CASE WHEN last.i = whole.samples THEN e.last
                            ELSE (SELECT v.these[last.i] FROM part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n) v) END AS value
                  FROM sample_chunks c
                  JOIN sample_shapes sh USING (host_no, shape)
                 CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
                 CROSS JOIN LATERAL (SELECT c.hour + interval '30 minutes' + u.at * interval '1 microsecond' AS at, u.i
                                       FROM unnest(c.at) WITH ORDINALITY u(at, i) ORDER BY u.at DESC, u.i DESC LIMIT 1) last
                 CROSS JOIN LATERAL shape_parts(sh.parts) p
                 CROSS JOIN LATERAL part_ends(whole.parts, whole.series, whole.samples, p.n) e
                 WHERE c.host_no = host AND c.hour = starts - interval '1 hour' AND p.counter
                 UNION ALL
                SELECT l.kind, l.name, l.sampled_at, l.agent_no, l.value
                  FROM sample_parts_loose(host, starts - interval '1 hour', starts) l WHERE l.counter) v
         WHERE (SELECT yes FROM plain)
         ORDER BY kind COLLATE "C", name COLLATE "C", at DESC, agent_no DESC)
    SELECT s.kind, s.name, least(
               s.increase + coalesce(s.first - CASE WHEN s.first >= b.value THEN b.value WHEN b.value IS NOT NULL THEN 0 END, 0),
               9223372036854775807)::bigint
      FROM series s LEFT JOIN before b ON b.kind = s.kind AND b.name = s.name
     UNION ALL
    SELECT kind, name, least(coalesce(sum(value - CASE WHEN value >= value_before THEN value_before ELSE 0 END)
                                      FILTER (WHERE value_before IS NOT NULL), 0), 9223372036854775807)::bigint
      FROM (SELECT p.kind, p.name, p.sampled_at, p.value,
                   lag(p.value) OVER (PARTITION BY p.kind COLLATE "C", p.name COLLATE "C" ORDER BY p.sampled_at, p.agent_no, p.seq) AS value_before
              FROM sample_parts(host, starts - interval '1 hour', starts + interval '1 hour') p
             WHERE p.counter AND NOT (SELECT yes FROM plain)) in_order
     WHERE sampled_at >= starts GROUP BY kind, name;
END;

-- The same as before, except for parts. One that is known to stay is not unpacked, and where all samples have one shape the figures of parts are
-- numbers in its order.
CREATE OR REPLACE FUNCTION host_hour(host integer, starts timestamptz) RETURNS SETOF host_rollups LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH chunk AS MATERIALIZED (SELECT * FROM sample_chunks c WHERE c.host_no = host AND c.hour = starts),
    sample AS (
        SELECT unnest(c.at) AS at, unnest(c.cpu_percent)::double precision AS cpu_percent, unnest(c.load_1m)::double precision AS load_1m,
               unnest(c.load_5m)::double precision AS load_5m, unnest(c.load_15m)::double precision AS load_15m,
               unnest(c.memory_used_bytes) AS memory_used_bytes, unnest(c.memory_total_bytes) AS memory_total_bytes,
               unnest(c.swap_used_bytes) AS swap_used_bytes, unnest(c.swap_total_bytes) AS swap_total_bytes,
               unnest(c.process_count)::bigint AS process_count
          FROM chunk c
        UNION ALL
        SELECT (date_part('epoch', s.sampled_at - starts) * 1000000)::bigint - 1800000000, s.cpu_percent, s.load_1m, s.load_5m, s.load_15m,
               s.memory_used_bytes, s.memory_total_bytes, s.swap_used_bytes, s.swap_total_bytes, s.process_count
          FROM samples_loose(host, starts, starts + interval '1 hour') s
        UNION ALL
        SELECT (date_part('epoch', o.sampled_at - starts) * 1000000)::bigint - 1800000000, o.cpu_percent, o.load_1m, o.load_5m, o.load_15m,
               o.memory_used_bytes, o.memory_total_bytes, o.swap_used_bytes, o.swap_total_bytes, o.process_count
          FROM host_vitals v JOIN host_metrics_old o ON o.host_id = v.host_id
         WHERE v.host_no = host AND o.sampled_at >= starts AND o.sampled_at < starts + interval '1 hour'),
    before AS MATERIALIZED (
        SELECT *
          FROM (SELECT c.hour + interval '30 minutes' + last.at * interval '1 microsecond' AS sampled_at, c.agent_no,
                       c.first_seq + coalesce(c.seqs[last.i], last.i - 1) AS seq, c.uptime_seconds[last.i] + last.at / 1000000 AS uptime_seconds,
                       c.network_rx_bytes[last.i] AS network_rx_bytes, c.network_tx_bytes[last.i] AS network_tx_bytes
                  FROM sample_chunks c
                 CROSS JOIN LATERAL (SELECT u.at, u.i FROM unnest(c.at) WITH ORDINALITY u(at, i) ORDER BY u.at DESC, u.i DESC LIMIT 1) last
                 WHERE c.host_no = host AND c.hour = starts - interval '1 hour'
                 UNION ALL
                SELECT * FROM sample_counters_loose(host, starts - interval '1 hour', starts)) s
         ORDER BY sampled_at DESC, agent_no DESC NULLS LAST, seq DESC LIMIT 1),
    plain AS MATERIALIZED (
        SELECT (SELECT count(*) = 1 AND bool_and(NOT EXISTS (
                           SELECT FROM (SELECT unnest(chunk.at) AS at, unnest(chunk.at[2:]) AS at_next,
                                               unnest(chunk.network_rx_bytes) AS rx, unnest(chunk.network_rx_bytes[2:]) AS rx_next,
                                               unnest(chunk.network_tx_bytes) AS tx, unnest(chunk.network_tx_bytes[2:]) AS tx_next) pair
                            WHERE pair.at_next < pair.at OR pair.rx_next < pair.rx OR pair.tx_next < pair.tx)) FROM chunk)
               AND NOT EXISTS (SELECT FROM sample_counters_loose(host, starts, starts + interval '1 hour')) AS yes),
    counted AS (
        SELECT sampled_at, lag(sampled_at) OVER in_order AS before_at, network_rx_bytes, network_tx_bytes,
               lag(network_rx_bytes) OVER in_order AS rx_before, lag(network_tx_bytes) OVER in_order AS tx_before,
               uptime_seconds < lag(uptime_seconds) OVER in_order AS booted
          FROM (SELECT * FROM before WHERE NOT (SELECT yes FROM plain)
                 UNION ALL
                SELECT * FROM sample_counters(host, starts, starts + interval '1 hour') WHERE NOT (SELECT yes FROM plain)) s
        WINDOW in_order AS (ORDER BY sampled_at, agent_no NULLS FIRST, seq)),
    increase AS (
        SELECT c.network_rx_bytes[cardinality(c.at)] - CASE WHEN b.network_rx_bytes <= c.network_rx_bytes[1] THEN b.network_rx_bytes
                                                            WHEN c.uptime_seconds[1] + c.at[1] / 1000000 < b.uptime_seconds THEN 0
                                                            ELSE c.network_rx_bytes[1] END AS rx,
               c.network_tx_bytes[cardinality(c.at)] - CASE WHEN b.network_tx_bytes <= c.network_tx_bytes[1] THEN b.network_tx_bytes
                                                            WHEN c.uptime_seconds[1] + c.at[1] / 1000000 < b.uptime_seconds THEN 0
                                                            ELSE c.network_tx_bytes[1] END AS tx
          FROM chunk c LEFT JOIN before b ON true WHERE (SELECT yes FROM plain)
         UNION ALL
        SELECT least(coalesce(sum(CASE WHEN network_rx_bytes >= rx_before THEN network_rx_bytes - rx_before WHEN booted THEN network_rx_bytes END)
                              FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint,
               least(coalesce(sum(CASE WHEN network_tx_bytes >= tx_before THEN network_tx_bytes - tx_before WHEN booted THEN network_tx_bytes END)
                              FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint
          FROM counted WHERE sampled_at >= starts
        HAVING NOT (SELECT yes FROM plain)),
    gauge_of AS (
        SELECT p.kind, p.name, f.lowest, f.added * (whole.samples / nullif(f.values, 0)) AS added, f.highest, whole.samples AS values,
               CASE WHEN p.kind <> 'disk_used' THEN NULL
                    WHEN total.constant THEN CASE WHEN total.first > 0 THEN least(100 * f.highest::double precision / total.first, 100) END
                    ELSE (SELECT max(CASE WHEN u.total > 0 THEN least(100 * u.used::double precision / u.total, 100) END)
                            FROM part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n) used
                           CROSS JOIN LATERAL part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n + 1) totals
                           CROSS JOIN LATERAL (SELECT unnest(used.these) AS used, unnest(totals.these) AS total) u) END AS percent
          FROM chunk c
          JOIN sample_shapes sh ON sh.host_no = host AND sh.shape = c.shape
         CROSS JOIN LATERAL chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
         CROSS JOIN LATERAL shape_parts(sh.parts) p
         CROSS JOIN LATERAL part_ends(whole.parts, whole.series, whole.samples, p.n) e
         CROSS JOIN LATERAL part_ends(whole.parts, whole.series, whole.samples, p.n + 1) total
         CROSS JOIN LATERAL (SELECT CASE WHEN e.constant THEN ARRAY[e.first] -- One stands for all.
                                         ELSE (SELECT these FROM part_values(whole.parts, whole.series, whole.steps, whole.samples, p.n)) END AS these OFFSET 0) v
         CROSS JOIN LATERAL (SELECT min(value) AS lowest, sum(value) AS added, max(value) AS highest, count(*) AS values FROM unnest(v.these) value) f
         WHERE NOT p.counter
         UNION ALL
        SELECT kind, name, min(value), sum(value), max(value), count(*),
               max(CASE WHEN kind = 'disk_used' AND after > 0 THEN least(100 * value::double precision / after, 100) END)
          FROM sample_parts_loose(host, starts, starts + interval '1 hour')
         WHERE NOT counter GROUP BY kind, name),
    gauge AS (
        SELECT kind COLLATE "C" AS kind, name COLLATE "C" AS name, min(lowest) AS lowest, (sum(added) / sum(values))::bigint AS mean,
               max(highest) AS highest, max(percent) AS percent
          FROM gauge_of GROUP BY 1, 2),
    counter AS (
        SELECT kind COLLATE "C" AS kind, name COLLATE "C" AS name, increase FROM host_hour_counters(host, starts)
         WHERE EXISTS (SELECT FROM sample_shapes sh WHERE sh.host_no = host AND sh.parts @> '[{"counter": true}]')),
    figures AS (
        SELECT kind, name, lowest, CASE WHEN lowest < highest THEN mean END AS mean, CASE WHEN lowest < highest THEN highest END AS highest FROM gauge
         UNION ALL
        SELECT kind, name, NULL, increase, NULL FROM counter),
    shapes AS (
        SELECT shape FROM chunk
         UNION
        SELECT shape FROM samples_loose(host, starts, starts + interval '1 hour')
         UNION
        SELECT NULL FROM host_vitals v JOIN host_metrics_old o ON o.host_id = v.host_id
         WHERE v.host_no = host AND o.sampled_at >= starts AND o.sampled_at < starts + interval '1 hour'),
    by_shape AS MATERIALIZED ( -- No row where the samples have several shapes, or where a shape names a part twice.
        SELECT sh.shape, listed.figures
          FROM (SELECT min(shape) AS shape FROM shapes HAVING count(*) = 1) one
          JOIN sample_shapes sh ON sh.host_no = host AND sh.shape = one.shape
         CROSS JOIN LATERAL (
               SELECT array_agg(ARRAY[f.lowest, f.mean, f.highest] ORDER BY p.n) AS figures, count(*) AS parts
                 FROM shape_parts(sh.parts) p JOIN figures f ON f.kind = p.kind COLLATE "C" AND f.name = p.name COLLATE "C") listed
         WHERE listed.parts = jsonb_array_length(sh.parts) AND listed.parts = (SELECT count(*) FROM figures)),
    by_name AS (
        SELECT jsonb_agg(CASE WHEN lowest IS NULL THEN jsonb_build_array(kind, name, NULL, mean)
                              WHEN highest IS NULL THEN jsonb_build_array(kind, name, lowest)
                              ELSE jsonb_build_array(kind, name, lowest, mean, highest) END ORDER BY kind, name) AS parts
          FROM figures WHERE NOT EXISTS (SELECT FROM by_shape)),
    fullest AS (
        SELECT percent, name FROM gauge WHERE percent IS NOT NULL ORDER BY percent DESC, name COLLATE "C" LIMIT 1)
    SELECT (SELECT host_id FROM host_vitals WHERE host_no = host), starts,
           starts + interval '30 minutes' + min(s.at) * interval '1 microsecond', starts + interval '30 minutes' + max(s.at) * interval '1 microsecond',
           coalesce((SELECT sampled_at FROM before), starts + interval '30 minutes' + min(s.at) * interval '1 microsecond'),
           min(s.cpu_percent), avg(s.cpu_percent), max(s.cpu_percent),
           min(s.load_1m), avg(least(s.load_1m, 1e100)), max(s.load_1m),
           min(s.load_5m), avg(least(s.load_5m, 1e100)), max(s.load_5m),
           min(s.load_15m), avg(least(s.load_15m, 1e100)), max(s.load_15m),
           min(s.memory_used_bytes), avg(s.memory_used_bytes)::bigint, max(s.memory_used_bytes), max(s.memory_total_bytes),
           min(s.swap_used_bytes), avg(s.swap_used_bytes)::bigint, max(s.swap_used_bytes), max(s.swap_total_bytes),
           min(s.process_count), avg(s.process_count)::bigint, max(s.process_count),
           (SELECT rx FROM increase), (SELECT tx FROM increase),
           (SELECT percent FROM fullest), count(*)::integer, (SELECT name FROM fullest), (SELECT parts FROM by_name),
           (SELECT shape FROM by_shape), (SELECT figures FROM by_shape)
      FROM sample s
    HAVING count(*) > 0;
END;

-- The planner takes longer for host_hour than the rollup of an hour takes, and it would plan it for every query of the views below. A session keeps the
-- plans of this function.
CREATE FUNCTION host_hour_planned(host integer, starts timestamptz) RETURNS SETOF host_rollups
    LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, public, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT * FROM host_hour(host, starts);
END $$;
COMMENT ON FUNCTION host_hour_planned IS 'The same as host_hour, for readers of one host: the session keeps the plan.';
REVOKE EXECUTE ON FUNCTION host_hour_planned FROM PUBLIC;

-- Stored rollups and those of open hours, as before, with shape and figures.
CREATE OR REPLACE VIEW host_hours AS
    SELECT r.*
      FROM host_vitals v
     CROSS JOIN LATERAL (SELECT coalesce(array_agg(o.hour), '{}') AS hours FROM host_hours_open(v.host_no) o) open
      JOIN host_rollups r ON r.host_id = v.host_id
     WHERE r.hour <> ALL (open.hours)
    UNION ALL
    SELECT v.host_id, open.hour, newest.first_at, newest.last_at, newest.counters_from,
           newest.cpu_percent_min, newest.cpu_percent_avg, newest.cpu_percent_max,
           newest.load_1m_min, newest.load_1m_avg, newest.load_1m_max, newest.load_5m_min, newest.load_5m_avg, newest.load_5m_max,
           newest.load_15m_min, newest.load_15m_avg, newest.load_15m_max,
           newest.memory_used_bytes_min, newest.memory_used_bytes_avg, newest.memory_used_bytes_max, newest.memory_total_bytes,
           newest.swap_used_bytes_min, newest.swap_used_bytes_avg, newest.swap_used_bytes_max, newest.swap_total_bytes,
           newest.process_count_min, newest.process_count_avg, newest.process_count_max,
           newest.network_rx_bytes_increase, newest.network_tx_bytes_increase,
           newest.fullest_disk_percent, newest.sample_count, newest.fullest_disk_mount_point, newest.parts,
           newest.shape, newest.figures
      FROM host_vitals v
     CROSS JOIN LATERAL host_hours_open(v.host_no) open
     CROSS JOIN LATERAL (
           SELECT * FROM (SELECT 0 AS computed, r.* FROM host_rollups r WHERE r.host_id = v.host_id AND r.hour = open.hour
                           UNION ALL
                          SELECT 1, c.* FROM host_hour_planned(v.host_no, open.hour) c) found
            ORDER BY sample_count DESC, computed DESC LIMIT 1) newest;
COMMENT ON COLUMN host_hours.shape IS 'The shape of all samples, which names the parts that figures is about; null where there are several, or none.';
COMMENT ON COLUMN host_hours.figures IS 'The figures of the shape''s parts: see host_rollups.';

CREATE OR REPLACE VIEW host_metric_parts_hourly AS
    SELECT r.host_id, r.hour, p.kind, p.name, p.value_min, p.value_avg, p.value_max, p.increase
      FROM host_hours r
     CROSS JOIN LATERAL (
           SELECT listed.kind, listed.name, r.figures[listed.n][1] AS value_min,
                  CASE WHEN r.figures[listed.n][1] IS NOT NULL THEN coalesce(r.figures[listed.n][2], r.figures[listed.n][1]) END AS value_avg,
                  coalesce(r.figures[listed.n][3], r.figures[listed.n][1]) AS value_max,
                  CASE WHEN r.figures[listed.n][1] IS NULL THEN r.figures[listed.n][2] END AS increase
             FROM host_vitals v
             JOIN sample_shapes s ON s.host_no = v.host_no
            CROSS JOIN LATERAL shape_parts(s.parts) listed
            WHERE v.host_id = r.host_id AND s.shape = r.shape
            UNION ALL
           SELECT named.figures->>0, named.figures->>1, (named.figures->>2)::bigint,
                  CASE jsonb_array_length(named.figures) WHEN 5 THEN (named.figures->>3)::bigint ELSE (named.figures->>2)::bigint END,
                  coalesce((named.figures->>4)::bigint, (named.figures->>2)::bigint),
                  CASE jsonb_array_length(named.figures) WHEN 4 THEN (named.figures->>3)::bigint END
             FROM jsonb_array_elements(r.parts) named(figures)) p;

DROP FUNCTION chunk_parts(bigint[], integer[]);
