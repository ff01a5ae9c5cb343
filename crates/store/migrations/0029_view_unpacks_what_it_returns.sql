-- host_metrics takes from a chunk only what it returns: a query by sampled_at alone does not unpack the other hours.

-- The planner cannot derive the hours of a span from sampled_at, so such a query still looks at the times of all chunks of a host. But
-- it unpacked the parts of all of them, and copied all their arrays, before it compared the times.
--
-- Now each value that all samples of a chunk share is a query of its own, in parentheses. PostgreSQL computes it when the first row that has passed the
-- conditions needs it, and keeps it for the other rows of the chunk. For that the query around it must stay a subquery: merged into
-- the outer query, the values would be computed for every row. ORDER BY sees to it. It sorts nothing, because all its rows have one hour.
CREATE OR REPLACE VIEW host_metrics AS
    SELECT m.host_id, m.sampled_at, m.agent_id, m.seq, m.cpu_percent, m.load_1m, m.load_5m, m.load_15m,
           m.memory_used_bytes, m.memory_total_bytes, m.swap_used_bytes, m.swap_total_bytes,
           m.uptime_seconds, m.process_count, m.network_rx_bytes, m.network_tx_bytes, m.disks,
           date_trunc('hour', m.sampled_at, 'UTC') AS hour
      FROM host_metrics_old m
     UNION ALL
    SELECT v.host_id, y.sampled_at, n.agent_id, y.seq, y.cpu_percent, y.load_1m, y.load_5m, y.load_15m,
           y.memory_used_bytes, y.memory_total_bytes, y.swap_used_bytes, y.swap_total_bytes,
           y.uptime_seconds, y.process_count, y.network_rx_bytes, y.network_tx_bytes, y.disks, c.hour
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
     CROSS JOIN LATERAL (
           SELECT x.sampled_at, c.first_seq + coalesce((SELECT c.seqs || '{}'::bigint[])[x.i], x.i - 1) AS seq,
                  (SELECT c.cpu_percent || '{}'::real[])[x.i]::double precision AS cpu_percent,
                  (SELECT c.load_1m || '{}'::real[])[x.i]::double precision AS load_1m,
                  (SELECT c.load_5m || '{}'::real[])[x.i]::double precision AS load_5m,
                  (SELECT c.load_15m || '{}'::real[])[x.i]::double precision AS load_15m,
                  (SELECT c.memory_used_bytes || '{}'::bigint[])[x.i] AS memory_used_bytes,
                  (SELECT c.memory_total_bytes || '{}'::bigint[])[x.i] AS memory_total_bytes,
                  (SELECT c.swap_used_bytes || '{}'::bigint[])[x.i] AS swap_used_bytes,
                  (SELECT c.swap_total_bytes || '{}'::bigint[])[x.i] AS swap_total_bytes,
                  (SELECT c.uptime_seconds || '{}'::bigint[])[x.i] + x.at / 1000000 AS uptime_seconds,
                  (SELECT c.process_count || '{}'::integer[])[x.i]::bigint AS process_count,
                  (SELECT c.network_rx_bytes || '{}'::bigint[])[x.i] AS network_rx_bytes,
                  (SELECT c.network_tx_bytes || '{}'::bigint[])[x.i] AS network_tx_bytes,
                  coalesce((SELECT ARRAY (SELECT format(s.disks, VARIADIC ARRAY (
                                                     SELECT w.parts[part * w.samples + i] FROM generate_series(0, w.kinds - 1) part)::text[])::jsonb
                                            FROM generate_series(1, w.samples) i)
                              FROM (SELECT disks.parts, whole.samples, listed.kinds
                                      FROM chunk_parts(c.parts_plain, c.parts_series, c.parts_steps, c.at) whole
                                     CROSS JOIN LATERAL (
                                           SELECT coalesce(max(d.n) + 1, 0)::integer AS kinds FROM jsonb_array_elements(s.parts) WITH ORDINALITY d(part, n)
                                            WHERE d.part ->> 'kind' = 'disk_used') listed
                                     CROSS JOIN LATERAL parts_values(whole.parts, whole.series, whole.steps, whole.samples, listed.kinds) disks
                                    OFFSET 0) w)[x.i], '[]') AS disks
             FROM (SELECT each.i, each.at, c.hour + interval '30 minutes' + each.at * interval '1 microsecond' AS sampled_at
                     FROM (SELECT generate_subscripts(c.at, 1) AS i, unnest(c.at) AS at) each
                   OFFSET 0) x
            ORDER BY c.hour) y
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
