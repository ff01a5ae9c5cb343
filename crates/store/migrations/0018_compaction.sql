-- Closed hours: samples of a finished arrival hour become chunks and rollups in one pass, and their rows go
-- with their partition. Readers see each sample once at any moment, and hours that are not compacted yet are
-- rolled up when they are read.

-- ---- Stored rollups ----------------------------------------------------------

ALTER TABLE host_metrics_hourly RENAME TO host_rollups;
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'host_rollups'::regclass LOOP
        EXECUTE format('ALTER TABLE %I RENAME TO %I', name, replace(name, 'host_metrics_hourly_', 'host_rollups_'));
    END LOOP;
END $$;

ALTER TABLE host_rollups ADD COLUMN parts jsonb;
COMMENT ON TABLE host_rollups IS
    'Rollups of compacted hours; one partition for each UTC month. Rows outlive the samples. Readers use host_metrics_hourly, which adds the hours that are not compacted yet.';
COMMENT ON COLUMN host_rollups.parts IS
    'Figures of file systems, devices and interfaces: [kind, name, least, mean, greatest] of a gauge, [kind, name, value] of one that did not change, [kind, name, null, increase] of a counter. Readers use host_metric_parts_hourly.';

COMMENT ON COLUMN host_rollups.network_rx_bytes_increase IS
    'Bytes received from counters_from to last_at. The counter begins at 0 after a boot; where it falls without one, nothing is added.';
COMMENT ON COLUMN host_rollups.network_tx_bytes_increase IS
    'Bytes sent from counters_from to last_at. The counter begins at 0 after a boot; where it falls without one, nothing is added.';

CREATE OR REPLACE FUNCTION rollups_partition_ensure(hour timestamptz) RETURNS void
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE month timestamptz := date_trunc('month', hour);
BEGIN
    PERFORM partition_ensure('host_rollups', to_char(month, 'YYYYMM'), month, month + interval '1 month');
END $$;

-- ---- What the previous version left ------------------------------------------

-- Rollups that the previous version still had to compute are computed by this one. Its own steps find no
-- more work: a compaction knows by itself which hours it changed.
INSERT INTO rollups_due (hour, host_id)
SELECT hour, host_id FROM rollup_changes, unnest(host_ids) AS host_id
 UNION
SELECT hour + interval '1 hour', host_id FROM rollup_changes, unnest(host_ids) AS host_id
 UNION
SELECT hour, host_id FROM rollups_set_aside
ON CONFLICT DO NOTHING;
DELETE FROM rollup_changes;
DELETE FROM rollups_set_aside;

CREATE FUNCTION rollup_changes_ignore() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END $$;
CREATE TRIGGER ignore BEFORE INSERT ON rollup_changes FOR EACH ROW EXECUTE FUNCTION rollup_changes_ignore();

COMMENT ON TABLE rollup_changes IS 'Of the previous version; what it writes here is ignored.';
COMMENT ON TABLE rollups_due IS 'Hours that the previous version had not rolled up yet. Only the holder of the compaction''s lock touches it.';
COMMENT ON TABLE rollups_set_aside IS
    'Hosts whose samples of an arrival hour could not be compacted, even alone. Their rows were moved to the running hour and are tried again with it; the entry goes once that works. Only the holder of the compaction''s lock writes here.';
COMMENT ON COLUMN rollups_set_aside.hour IS 'The arrival hour whose compaction failed first.';

DROP FUNCTION host_metrics_hour(uuid, timestamptz);

-- ---- Reading one host --------------------------------------------------------

-- The functions below are one SELECT each, so that the planner inlines them and sees their arguments. They are parsed here
-- and not when they are called, so that readers need no search_path.


-- The hours whose rollup needs rows that are not compacted yet: those that the rows fall into and, because
-- its increases start at the last sample before, the hour after each.
CREATE FUNCTION host_hours_open(host integer) RETURNS TABLE (hour timestamptz) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT DISTINCT date_bin(interval '1 hour', s.sampled_at, timestamptz 'epoch') + later.hours
      FROM samples_open s CROSS JOIN (VALUES (interval '0 hours'), (interval '1 hour')) AS later(hours)
     WHERE s.host_no = host
       AND s.arrived_hour = ANY (ARRAY(SELECT h.arrived_hour FROM sample_hours h WHERE h.compacted_below <= host));
END;

-- The parts of a shape. OFFSET keeps the planner from extracting the names again for every value.
CREATE FUNCTION shape_parts(list jsonb) RETURNS TABLE (n bigint, kind text, name text, counter boolean) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT p.n, p.part->>'kind', p.part->>'name', coalesce((p.part->>'counter')::boolean, false)
      FROM jsonb_array_elements(list) WITH ORDINALITY p(part, n) OFFSET 0;
END;

-- The parts of a chunk, decompressed once and not again for every part; OFFSET sees to that.
CREATE FUNCTION chunk_parts(parts bigint[], at integer[]) RETURNS TABLE (parts bigint[], samples integer) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT chunk_parts.parts || '{}'::bigint[], cardinality(at) OFFSET 0;
END;

-- The values of one host's parts in rows of their own, each with the value of the part after it: a disk's total
-- follows its use. Both times are whole hours, or infinite.
CREATE FUNCTION sample_parts_loose(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, kind text, name text, counter boolean, value bigint, after bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT s.sampled_at, s.agent_no, s.seq,
           p.kind, p.name, p.counter, s.parts[p.n], s.parts[p.n + 1]
      FROM samples_open s
      JOIN sample_shapes sh USING (host_no, shape)
     CROSS JOIN LATERAL shape_parts(sh.parts) p
     WHERE s.host_no = host AND s.sampled_at >= since AND s.sampled_at < until
       AND s.arrived_hour = ANY (ARRAY(SELECT h.arrived_hour FROM sample_hours h WHERE h.compacted_below <= host))
    UNION ALL
    SELECT o.sampled_at, n.agent_no, o.seq, p.kind, d.mount_point, false, p.value, p.after
      FROM host_vitals v
      JOIN host_metrics_old o ON o.host_id = v.host_id
      LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
     CROSS JOIN LATERAL jsonb_to_recordset(o.disks) AS d(mount_point text, used_bytes bigint, total_bytes bigint)
     CROSS JOIN LATERAL (VALUES ('disk_used', d.used_bytes, d.total_bytes), ('disk_total', d.total_bytes, NULL)) AS p(kind, value, after)
     WHERE v.host_no = host AND o.sampled_at >= since AND o.sampled_at < until;
END;

-- The values of one host's parts, from chunks and rows.
CREATE FUNCTION sample_parts(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, kind text, name text, counter boolean, value bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.hour + interval '30 minutes' + u.at * interval '1 microsecond', c.agent_no, c.first_seq + coalesce(u.seq, u.i - 1),
           p.kind, p.name, p.counter, u.value
      FROM sample_chunks c
      JOIN sample_shapes sh USING (host_no, shape)
     CROSS JOIN LATERAL chunk_parts(c.parts, c.at) whole
     CROSS JOIN LATERAL shape_parts(sh.parts) p
     CROSS JOIN LATERAL (
           SELECT unnest(c.at) AS at, unnest(c.seqs) AS seq, generate_subscripts(c.at, 1) AS i,
                  unnest(whole.parts[(p.n - 1) * whole.samples + 1 : p.n * whole.samples]) AS value) u
     WHERE c.host_no = host AND c.hour >= since AND c.hour < until
    UNION ALL
    SELECT sampled_at, agent_no, seq, kind, name, counter, value FROM sample_parts_loose(host, since, until);
END;

-- The network counters of one host, with its uptime. Both times are whole hours.
CREATE FUNCTION sample_counters(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, uptime_seconds bigint, network_rx_bytes bigint, network_tx_bytes bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.hour + interval '30 minutes' + u.at * interval '1 microsecond', c.agent_no, c.first_seq + coalesce(c.seqs[u.i], u.i - 1),
           u.uptime_seconds + u.at / 1000000, u.network_rx_bytes, u.network_tx_bytes
      FROM sample_chunks c
     CROSS JOIN LATERAL unnest(c.at, c.uptime_seconds, c.network_rx_bytes, c.network_tx_bytes)
           WITH ORDINALITY u(at, uptime_seconds, network_rx_bytes, network_tx_bytes, i)
     WHERE c.host_no = host AND c.hour >= since AND c.hour < until
    UNION ALL
    SELECT s.sampled_at, s.agent_no, s.seq, s.uptime_seconds, s.network_rx_bytes, s.network_tx_bytes
      FROM samples_open s
     WHERE s.host_no = host AND s.sampled_at >= since AND s.sampled_at < until
       AND s.arrived_hour = ANY (ARRAY(SELECT h.arrived_hour FROM sample_hours h WHERE h.compacted_below <= host))
    UNION ALL
    SELECT o.sampled_at, n.agent_no, o.seq, o.uptime_seconds, o.network_rx_bytes, o.network_tx_bytes
      FROM host_vitals v
      JOIN host_metrics_old o ON o.host_id = v.host_id
      LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
     WHERE v.host_no = host AND o.sampled_at >= since AND o.sampled_at < until;
END;

-- What the counters of one host's parts increased by in an hour, from the last sample of the hour before that has the part. Each
-- counter is on its own: one that is below its value before began at 0 again.
--
-- As a rule all samples of the hour are one chunk in the order of their times. Then neighbours in a series are neighbours in
-- time, and nothing is sorted. Otherwise (late samples, rows that are not compacted, parts that came or went) the values of
-- both hours are put in order. Both ways give the same.
CREATE FUNCTION host_hour_counters(host integer, starts timestamptz) RETURNS TABLE (kind text, name text, increase bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH chunk AS MATERIALIZED (
        SELECT c.at, sh.parts AS list, whole.parts, whole.samples
          FROM sample_chunks c
          JOIN sample_shapes sh USING (host_no, shape)
         CROSS JOIN LATERAL chunk_parts(c.parts, c.at) whole
         WHERE c.host_no = host AND c.hour = starts),
    plain AS MATERIALIZED (
        SELECT (SELECT count(*) = 1 AND bool_and(NOT EXISTS (
                           SELECT FROM (SELECT unnest(chunk.at) AS at, unnest(chunk.at[2:]) AS next) pair WHERE pair.next < pair.at)) FROM chunk)
               AND NOT EXISTS (
                   SELECT FROM samples_open s
                    WHERE s.host_no = host AND s.sampled_at >= starts AND s.sampled_at < starts + interval '1 hour'
                      AND s.arrived_hour = ANY (ARRAY(SELECT h.arrived_hour FROM sample_hours h WHERE h.compacted_below <= host))) AS yes),
    series AS MATERIALIZED (
        SELECT p.kind, p.name, chunk.parts[(p.n - 1) * chunk.samples + 1 : p.n * chunk.samples] AS these
          FROM chunk CROSS JOIN LATERAL shape_parts(chunk.list) p
         WHERE p.counter AND (SELECT yes FROM plain)),
    before AS (
        SELECT DISTINCT ON (kind COLLATE "C", name COLLATE "C") kind, name, value
          FROM (SELECT p.kind, p.name, last.at, c.agent_no, whole.parts[(p.n - 1) * whole.samples + last.i] AS value
                  FROM sample_chunks c
                  JOIN sample_shapes sh USING (host_no, shape)
                 CROSS JOIN LATERAL chunk_parts(c.parts, c.at) whole
                 CROSS JOIN LATERAL (SELECT c.hour + interval '30 minutes' + u.at * interval '1 microsecond' AS at, u.i
                                       FROM unnest(c.at) WITH ORDINALITY u(at, i) ORDER BY u.at DESC, u.i DESC LIMIT 1) last
                 CROSS JOIN LATERAL shape_parts(sh.parts) p
                 WHERE c.host_no = host AND c.hour = starts - interval '1 hour' AND p.counter
                 UNION ALL
                SELECT l.kind, l.name, l.sampled_at, l.agent_no, l.value
                  FROM sample_parts_loose(host, starts - interval '1 hour', starts) l WHERE l.counter) v
         WHERE (SELECT yes FROM plain)
         ORDER BY kind COLLATE "C", name COLLATE "C", at DESC, agent_no DESC)
    SELECT s.kind, s.name, least(
               coalesce((SELECT sum(u.value - CASE WHEN u.value >= u.value_before THEN u.value_before ELSE 0 END)
                           FROM (SELECT unnest(s.these[2:]) AS value, unnest(s.these) AS value_before) u WHERE u.value IS NOT NULL), 0)
               + coalesce(s.these[1] - CASE WHEN s.these[1] >= b.value THEN b.value WHEN b.value IS NOT NULL THEN 0 END, 0),
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

-- ---- One host's hour, rolled up ----------------------------------------------

-- As its visible samples say, wherever they are; no row where there are none. Sums have no room beyond
-- 64 bits: absurd ones are cut, so that one liar's numbers do not fail everybody's rollup.
--
-- The network totals add up all interfaces. After a boot they begin at 0 again. A total that falls without a boot has lost an
-- interface, or the counters of one: what the others received meanwhile is unknown, and the new total is no traffic.
CREATE FUNCTION host_hour(host integer, starts timestamptz) RETURNS SETOF host_rollups LANGUAGE sql STABLE
BEGIN ATOMIC
    WITH sample AS (
        SELECT c.hour + interval '30 minutes' + x.at * interval '1 microsecond' AS sampled_at,
               c.agent_no, c.first_seq + coalesce(c.seqs[x.place], x.place - 1) AS seq, x.cpu_percent, x.load_1m, x.load_5m, x.load_15m,
               x.memory_used_bytes, x.memory_total_bytes, x.swap_used_bytes, x.swap_total_bytes, x.uptime_seconds, x.process_count,
               x.network_rx_bytes, x.network_tx_bytes
          FROM sample_chunks c
         CROSS JOIN LATERAL (
        SELECT unnest(c.at) AS at, generate_subscripts(c.at, 1) AS place,
               unnest(c.cpu_percent)::double precision AS cpu_percent, unnest(c.load_1m)::double precision AS load_1m,
               unnest(c.load_5m)::double precision AS load_5m, unnest(c.load_15m)::double precision AS load_15m,
               unnest(c.memory_used_bytes) AS memory_used_bytes, unnest(c.memory_total_bytes) AS memory_total_bytes,
               unnest(c.swap_used_bytes) AS swap_used_bytes, unnest(c.swap_total_bytes) AS swap_total_bytes,
               unnest(c.uptime_seconds) + unnest(c.at) / 1000000 AS uptime_seconds, unnest(c.process_count)::bigint AS process_count,
               unnest(c.network_rx_bytes) AS network_rx_bytes, unnest(c.network_tx_bytes) AS network_tx_bytes) x
         WHERE c.host_no = host AND c.hour = starts
        UNION ALL
        SELECT s.sampled_at, s.agent_no, s.seq, s.cpu_percent, s.load_1m, s.load_5m, s.load_15m, s.memory_used_bytes, s.memory_total_bytes,
               s.swap_used_bytes, s.swap_total_bytes, s.uptime_seconds, s.process_count, s.network_rx_bytes, s.network_tx_bytes
          FROM samples_open s
         WHERE s.host_no = host AND s.sampled_at >= starts AND s.sampled_at < starts + interval '1 hour'
           AND s.arrived_hour = ANY (ARRAY(SELECT h.arrived_hour FROM sample_hours h WHERE h.compacted_below <= host))
        UNION ALL
        SELECT o.sampled_at, n.agent_no, o.seq, o.cpu_percent, o.load_1m, o.load_5m, o.load_15m, o.memory_used_bytes, o.memory_total_bytes,
               o.swap_used_bytes, o.swap_total_bytes, o.uptime_seconds, o.process_count, o.network_rx_bytes, o.network_tx_bytes
          FROM host_vitals v
          JOIN host_metrics_old o ON o.host_id = v.host_id
          LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
         WHERE v.host_no = host AND o.sampled_at >= starts AND o.sampled_at < starts + interval '1 hour'),
    before AS (
        SELECT * FROM sample_counters(host, starts - interval '1 hour', starts)
         ORDER BY sampled_at DESC, agent_no DESC NULLS LAST, seq DESC LIMIT 1),
    counted AS (
        SELECT sampled_at, lag(sampled_at) OVER in_order AS before_at, network_rx_bytes, network_tx_bytes,
               lag(network_rx_bytes) OVER in_order AS rx_before, lag(network_tx_bytes) OVER in_order AS tx_before,
               uptime_seconds < lag(uptime_seconds) OVER in_order AS booted
          FROM (SELECT * FROM before
                 UNION ALL
                SELECT sampled_at, agent_no, seq, uptime_seconds, network_rx_bytes, network_tx_bytes FROM sample) s
        WINDOW in_order AS (ORDER BY sampled_at, agent_no NULLS FIRST, seq)),
    increase AS (
        SELECT least(coalesce(sum(CASE WHEN network_rx_bytes >= rx_before THEN network_rx_bytes - rx_before WHEN booted THEN network_rx_bytes END)
                              FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint AS rx,
               least(coalesce(sum(CASE WHEN network_tx_bytes >= tx_before THEN network_tx_bytes - tx_before WHEN booted THEN network_tx_bytes END)
                              FILTER (WHERE before_at IS NOT NULL), 0), 9223372036854775807)::bigint AS tx
          FROM counted WHERE sampled_at >= starts),
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
        SELECT kind COLLATE "C" AS kind, name COLLATE "C" AS name, increase FROM host_hour_counters(host, starts)),
    figures AS (
        SELECT jsonb_agg(of_part ORDER BY kind, name) AS parts
          FROM (SELECT kind, name, CASE WHEN lowest < highest THEN jsonb_build_array(kind, name, lowest, mean, highest)
                                        ELSE jsonb_build_array(kind, name, lowest) END FROM gauge
                 UNION ALL
                SELECT kind, name, jsonb_build_array(kind, name, NULL, increase) FROM counter) f(kind, name, of_part)),
    fullest AS (
        SELECT percent, name FROM gauge WHERE percent IS NOT NULL ORDER BY percent DESC, name COLLATE "C" LIMIT 1)
    SELECT (SELECT host_id FROM host_vitals WHERE host_no = host), starts,
           min(s.sampled_at), max(s.sampled_at), coalesce((SELECT sampled_at FROM before), min(s.sampled_at)),
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

REVOKE EXECUTE ON FUNCTION host_hours_open, shape_parts, chunk_parts, sample_parts, sample_parts_loose, sample_counters, host_hour_counters, host_hour,
    rollup_changes_ignore FROM PUBLIC;
COMMENT ON FUNCTION rollup_changes_ignore IS 'Keeps the rollups of the previous version idle.';
COMMENT ON FUNCTION host_hours_open IS 'The hours of a host whose rollup depends on rows that are not compacted yet.';
COMMENT ON FUNCTION shape_parts IS 'The parts that a shape lists.';
COMMENT ON FUNCTION chunk_parts IS 'The parts of a chunk, decompressed, and how many samples it has.';
COMMENT ON FUNCTION host_hour_counters IS 'The increases of the counters among one host''s parts in one hour.';
COMMENT ON FUNCTION sample_parts_loose IS 'The values of one host''s parts, from open rows and the previous version''s table.';
COMMENT ON FUNCTION sample_parts IS 'The values of one host''s parts, from chunks, open rows and the previous version''s table.';
COMMENT ON FUNCTION sample_counters IS 'The network counters of one host, from chunks, open rows and the previous version''s table.';
COMMENT ON FUNCTION host_hour IS 'One hour of one host, rolled up from all its visible samples.';

-- ---- Views -------------------------------------------------------------------

-- Stored rollups, except for hours that have rows which are not compacted yet; those are rolled up here.
-- Of a stored and a computed row for one hour the one with more samples counts: rollups outlive samples.
CREATE VIEW host_hours AS
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
           newest.fullest_disk_percent, newest.sample_count, newest.fullest_disk_mount_point, newest.parts
      FROM host_vitals v
     CROSS JOIN LATERAL host_hours_open(v.host_no) open
     CROSS JOIN LATERAL (
           SELECT * FROM (SELECT 0 AS computed, r.* FROM host_rollups r WHERE r.host_id = v.host_id AND r.hour = open.hour
                           UNION ALL
                          SELECT 1, c.* FROM host_hour(v.host_no, open.hour) c) found
            ORDER BY sample_count DESC, computed DESC LIMIT 1) newest;

COMMENT ON VIEW host_hours IS 'All rollups, stored or computed from rows that are not compacted yet. Readers use host_metrics_hourly and host_metric_parts_hourly.';

CREATE VIEW host_metrics_hourly AS
    SELECT host_id, hour, first_at, last_at, counters_from, cpu_percent_min, cpu_percent_avg, cpu_percent_max,
           load_1m_min, load_1m_avg, load_1m_max, load_5m_min, load_5m_avg, load_5m_max, load_15m_min, load_15m_avg, load_15m_max,
           memory_used_bytes_min, memory_used_bytes_avg, memory_used_bytes_max, memory_total_bytes,
           swap_used_bytes_min, swap_used_bytes_avg, swap_used_bytes_max, swap_total_bytes,
           process_count_min, process_count_avg, process_count_max, network_rx_bytes_increase, network_tx_bytes_increase,
           fullest_disk_percent, sample_count, fullest_disk_mount_point
      FROM host_hours;

COMMENT ON VIEW host_metrics_hourly IS
    'Every host''s samples by the UTC hour: stored for hours that are compacted, computed when read for the others. Read it by host_id.';

CREATE VIEW host_metric_parts AS
    SELECT v.host_id, p.sampled_at, p.kind, p.name, p.value
      FROM host_vitals v CROSS JOIN LATERAL sample_parts(v.host_no, '-infinity', 'infinity') p;

COMMENT ON VIEW host_metric_parts IS 'What samples say about file systems, block devices, interfaces and other parts. Read it by host_id.';

CREATE VIEW host_metric_parts_hourly AS
    SELECT r.host_id, r.hour, p.figures->>0 AS kind, p.figures->>1 AS name,
           (p.figures->>2)::bigint AS value_min,
           CASE jsonb_array_length(p.figures) WHEN 5 THEN (p.figures->>3)::bigint ELSE (p.figures->>2)::bigint END AS value_avg,
           coalesce((p.figures->>4)::bigint, (p.figures->>2)::bigint) AS value_max,
           CASE jsonb_array_length(p.figures) WHEN 4 THEN (p.figures->>3)::bigint END AS increase
      FROM host_hours r CROSS JOIN LATERAL jsonb_array_elements(r.parts) p(figures);

COMMENT ON VIEW host_metric_parts_hourly IS 'Parts by the UTC hour: gauges with their least, mean and greatest value, counters with their increase. Read it by host_id.';

-- The views' columns mean what the columns of the table behind them mean.
DO $$
DECLARE said record;
BEGIN
    FOR said IN
        SELECT view.name, a.attname, col_description('host_rollups'::regclass, a.attnum) AS meaning
          FROM (VALUES ('host_hours'), ('host_metrics_hourly')) AS view(name)
          JOIN pg_attribute mine ON mine.attrelid = view.name::regclass
          JOIN pg_attribute a ON a.attrelid = 'host_rollups'::regclass AND a.attname = mine.attname AND a.attnum > 0
    LOOP
        EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', said.name, said.attname, said.meaning);
    END LOOP;
END $$;
COMMENT ON COLUMN host_metric_parts.host_id IS 'The host.';
COMMENT ON COLUMN host_metric_parts.sampled_at IS 'When the sample was taken, as the agent says.';
COMMENT ON COLUMN host_metric_parts.kind IS 'What is measured, such as disk_used.';
COMMENT ON COLUMN host_metric_parts.name IS 'Of which part: a mount point, a device, an interface.';
COMMENT ON COLUMN host_metric_parts.value IS 'The value, in the unit of its kind.';
COMMENT ON COLUMN host_metric_parts_hourly.host_id IS 'The host.';
COMMENT ON COLUMN host_metric_parts_hourly.hour IS 'When the hour begins.';
COMMENT ON COLUMN host_metric_parts_hourly.kind IS 'What is measured, such as disk_used.';
COMMENT ON COLUMN host_metric_parts_hourly.name IS 'Of which part: a mount point, a device, an interface.';
COMMENT ON COLUMN host_metric_parts_hourly.value_min IS 'A gauge''s least value.';
COMMENT ON COLUMN host_metric_parts_hourly.value_avg IS 'A gauge''s mean over the samples, rounded.';
COMMENT ON COLUMN host_metric_parts_hourly.value_max IS 'A gauge''s greatest value.';
COMMENT ON COLUMN host_metric_parts_hourly.increase IS 'A counter''s increase since the last sample of the hour before; a counter that went down began at 0 again.';
