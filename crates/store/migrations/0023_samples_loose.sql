-- The rows of a host that are not compacted yet are found hour of arrival by hour of arrival, in one place.
--
-- The rollup of an hour asked for them with a list of those arrival hours in which the host is not compacted. PostgreSQL
-- skips no partition for such a list. So each hour of a backfill read all of the host's rows in the arrival hour that was
-- just compacted, four times: a month of one host took a minute. A join with sample_hours that must come first lets it skip
-- the partitions of the other hours. The five functions are the same as before otherwise.

-- A column that samples_open gets must be added by a migration that creates this function again.
CREATE FUNCTION samples_loose(host integer, since timestamptz, until timestamptz) RETURNS SETOF samples_open LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT s.* FROM sample_hours h
     CROSS JOIN LATERAL (
           SELECT * FROM samples_open o
            WHERE o.arrived_hour = h.arrived_hour AND o.host_no = host AND o.sampled_at >= since AND o.sampled_at < until OFFSET 0) s
     WHERE h.compacted_below <= host;
END;

COMMENT ON FUNCTION samples_loose IS 'The samples of one host that are not compacted yet, from one time to another.';

REVOKE EXECUTE ON FUNCTION samples_loose FROM PUBLIC;

-- A function with a setting stays out of the plans of the views. There the planner would guess hundreds of hours for each host,
-- and PostgreSQL would compile a query of 10 ms for seconds (jit_above_cost) wherever a reader has left that on.
CREATE OR REPLACE FUNCTION host_hours_open(host integer) RETURNS TABLE (hour timestamptz) LANGUAGE sql STABLE ROWS 2 SET jit = off
BEGIN ATOMIC
    SELECT DISTINCT date_bin(interval '1 hour', s.sampled_at, timestamptz 'epoch') + later.hours
      FROM samples_loose(host, '-infinity', 'infinity') s CROSS JOIN (VALUES (interval '0 hours'), (interval '1 hour')) AS later(hours);
END;

CREATE OR REPLACE FUNCTION sample_parts_loose(host integer, since timestamptz, until timestamptz)
    RETURNS TABLE (sampled_at timestamptz, agent_no integer, seq bigint, kind text, name text, counter boolean, value bigint, after bigint)
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT s.sampled_at, s.agent_no, s.seq,
           p.kind, p.name, p.counter, s.parts[p.n], s.parts[p.n + 1]
      FROM samples_loose(host, since, until) s
      JOIN sample_shapes sh USING (host_no, shape)
     CROSS JOIN LATERAL shape_parts(sh.parts) p
    UNION ALL
    SELECT o.sampled_at, n.agent_no, o.seq, p.kind, d.mount_point, false, p.value, p.after
      FROM host_vitals v
      JOIN host_metrics_old o ON o.host_id = v.host_id
      LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
     CROSS JOIN LATERAL jsonb_to_recordset(o.disks) AS d(mount_point text, used_bytes bigint, total_bytes bigint)
     CROSS JOIN LATERAL (VALUES ('disk_used', d.used_bytes, d.total_bytes), ('disk_total', d.total_bytes, NULL)) AS p(kind, value, after)
     WHERE v.host_no = host AND o.sampled_at >= since AND o.sampled_at < until;
END;

CREATE OR REPLACE FUNCTION sample_counters(host integer, since timestamptz, until timestamptz)
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
      FROM samples_loose(host, since, until) s
    UNION ALL
    SELECT o.sampled_at, n.agent_no, o.seq, o.uptime_seconds, o.network_rx_bytes, o.network_tx_bytes
      FROM host_vitals v
      JOIN host_metrics_old o ON o.host_id = v.host_id
      LEFT JOIN agent_numbers n ON n.agent_id = o.agent_id
     WHERE v.host_no = host AND o.sampled_at >= since AND o.sampled_at < until;
END;

CREATE OR REPLACE FUNCTION host_hour_counters(host integer, starts timestamptz) RETURNS TABLE (kind text, name text, increase bigint)
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
               AND NOT EXISTS (SELECT FROM samples_loose(host, starts, starts + interval '1 hour')) AS yes),
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

CREATE OR REPLACE FUNCTION host_hour(host integer, starts timestamptz) RETURNS SETOF host_rollups LANGUAGE sql STABLE
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
          FROM samples_loose(host, starts, starts + interval '1 hour') s
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

-- A few rows that hardly change: autovacuum would leave them to the planner's guess, which is hundreds.
ANALYZE sample_hours;
