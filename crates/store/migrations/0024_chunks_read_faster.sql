-- Chunks cost less: to write, because of a faster compression and without statistics of their arrays; to read, because a
-- query takes apart only the arrays that it selects; and disks are read as numbers.

-- ---- Writing -------------------------------------------------------------------------------------

-- PostgreSQL's own compression took a third of the time of writing a chunk, most of it for values in which it finds little to
-- compress. lz4 costs next to nothing, and is worse only where there is much to find: process_count and parts stay as they are. So do the
-- chunks that exist: both are readable. lz4 is an option of the server's build; without it nothing changes.
DO $$
DECLARE chunks regclass;
BEGIN
    FOR chunks IN SELECT 'sample_chunks'::regclass UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = 'sample_chunks'::regclass LOOP
        EXECUTE (SELECT format('ALTER TABLE %s %s', chunks, string_agg(format('ALTER %I SET COMPRESSION lz4', attname), ', '))
                   FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
                  WHERE attrelid = chunks AND attnum > 0 AND NOT attisdropped AND typcategory = 'A'
                    AND attname NOT IN ('process_count', 'parts'));
    END LOOP;
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'this server has no lz4';
END $$;

-- The statistics of an array are about its most frequent elements. No query searches for an element, and to count those of
-- all chunks in a sample takes ANALYZE seconds. CREATE TABLE LIKE does not copy this setting.
CREATE FUNCTION chunks_without_statistics(chunks regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE (SELECT format('ALTER TABLE %s %s', chunks, string_agg(format('ALTER %I SET STATISTICS 0', attname), ', '))
               FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
              WHERE attrelid = chunks AND attnum > 0 AND NOT attisdropped AND typcategory = 'A');
END $$;

COMMENT ON FUNCTION chunks_without_statistics IS 'Keeps ANALYZE from the arrays of sample_chunks or one of its partitions.';

SELECT chunks_without_statistics('sample_chunks');
SELECT chunks_without_statistics(inhrelid) FROM pg_inherits WHERE inhparent = 'sample_chunks'::regclass;

-- The same as before, and without statistics of arrays.
CREATE OR REPLACE FUNCTION metrics_partitions_ensure(retention interval) RETURNS integer
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    day  timestamptz;
    made integer := 0;
BEGIN
    PERFORM sample_hours_ensure();
    FOR day IN
        SELECT generate_series(date_trunc('day', now() - retention) - interval '1 day',
                               date_trunc('day', now()) + interval '2 days', '1 day')
    LOOP
        IF partition_ensure('sample_chunks', to_char(day, 'YYYYMMDD'), day, day + interval '1 day') THEN
            PERFORM chunks_without_statistics(('sample_chunks_' || to_char(day, 'YYYYMMDD'))::regclass);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END $$;

-- ---- Rolling up ----------------------------------------------------------------------------------

-- The network counters of one host that are not in chunks, with its uptime.
CREATE FUNCTION sample_counters_loose(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, uptime_seconds bigint, network_rx_bytes bigint, network_tx_bytes bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT s.sampled_at, s.agent_no, s.seq, s.uptime_seconds, s.network_rx_bytes, s.network_tx_bytes
      FROM samples_loose(host, since, until) s
    UNION ALL
    SELECT o.sampled_at, n.agent_no, o.seq, o.uptime_seconds, o.network_rx_bytes, o.network_tx_bytes
      FROM host_vitals v
      JOIN host_metrics_old o ON o.host_id = v.host_id
      LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
     WHERE v.host_no = host AND o.sampled_at >= since AND o.sampled_at < until;
END;

COMMENT ON FUNCTION sample_counters_loose IS 'The network counters of one host, from open rows and the previous version''s table.';

-- The same as before, in a cheaper way. As a rule all samples of an hour are one chunk in the order of their times, and the network
-- counters never fall in it. Then what they increased by is the last value minus the value before the hour. Otherwise (late samples, rows that are
-- not compacted, a boot) all values are put in order and compared with the one before. Both ways give the same.
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
        SELECT p.kind, p.name, f.*
          FROM sample_chunks c
          JOIN sample_shapes sh USING (host_no, shape)
         CROSS JOIN LATERAL chunk_parts(c.parts, c.at) whole
         CROSS JOIN LATERAL shape_parts(sh.parts) p
         CROSS JOIN LATERAL (SELECT whole.parts[(p.n - 1) * whole.samples + 1 : p.n * whole.samples] AS these,
                                    CASE p.kind WHEN 'disk_used' THEN whole.parts[p.n * whole.samples + 1 : (p.n + 1) * whole.samples] END AS totals OFFSET 0) v
         CROSS JOIN LATERAL (SELECT min(value) AS lowest, sum(value) AS added, max(value) AS highest, count(*) AS values,
                                    max(CASE WHEN total > 0 THEN least(100 * value::double precision / total, 100) END) AS percent
                               FROM (SELECT unnest(v.these) AS value, unnest(v.totals) AS total) u) f
         WHERE c.host_no = host AND c.hour = starts AND NOT p.counter
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
        SELECT jsonb_agg(of_part ORDER BY kind, name) AS parts
          FROM (SELECT kind, name, CASE WHEN lowest < highest THEN jsonb_build_array(kind, name, lowest, mean, highest)
                                        ELSE jsonb_build_array(kind, name, lowest) END FROM gauge
                 UNION ALL
                SELECT kind, name, jsonb_build_array(kind, name, NULL, increase) FROM counter) f(kind, name, of_part)),
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
           (SELECT percent FROM fullest), count(*)::integer, (SELECT name FROM fullest), (SELECT parts FROM figures)
      FROM sample s
    HAVING count(*) > 0;
END;

-- ---- Reading -------------------------------------------------------------------------------------

-- The same as before. A chunk's arrays are decompressed once, by OFFSET 0, and their elements are found by their place: so an array that a
-- query does not select is neither decompressed nor taken apart. (As a set of rows for each array, all of them would be.)
-- Open samples come last, because they are the newest: rows in order are sorted fastest. The view calls no function of ours: whoever may read
-- it would need the right to call that.
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
             FROM (SELECT coalesce(c.parts, '{}') || '{}'::bigint[] AS parts, cardinality(c.at) AS samples,
                          (SELECT coalesce(max(d.n) + 1, 0)::integer FROM jsonb_array_elements(s.parts) WITH ORDINALITY d(part, n)
                            WHERE d.part ->> 'kind' = 'disk_used') AS kinds OFFSET 0) w
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

-- The disks of samples as numbers, for plots: the column disks of host_metrics is JSON that must be written and read again.
-- A disk is a part of the kind disk_used, and the part after it is its total. One SELECT, which the planner inlines.
CREATE FUNCTION host_disk_samples(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_id uuid, seq bigint, mount_point text, used_bytes bigint, total_bytes bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT x.sampled_at, n.agent_id, c.first_seq + coalesce(c.seqs[x.i], x.i - 1), p.name, x.used_bytes, x.total_bytes
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
     CROSS JOIN LATERAL chunk_parts(c.parts, c.at) whole
     CROSS JOIN LATERAL shape_parts(s.parts) p
     CROSS JOIN LATERAL (
           SELECT c.hour + interval '30 minutes' + unnest(c.at) * interval '1 microsecond' AS sampled_at, generate_subscripts(c.at, 1) AS i,
                  unnest(whole.parts[(p.n - 1) * whole.samples + 1 : p.n * whole.samples]) AS used_bytes,
                  unnest(whole.parts[p.n * whole.samples + 1 : (p.n + 1) * whole.samples]) AS total_bytes) x
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

COMMENT ON FUNCTION host_disk_samples IS 'The disks of one host''s samples from one time to another: a row for each sample and disk.';

REVOKE EXECUTE ON FUNCTION chunks_without_statistics, sample_counters_loose, host_disk_samples FROM PUBLIC;
