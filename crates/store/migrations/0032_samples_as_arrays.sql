-- A host's samples are read as arrays, which is how chunks have them; and parts are unpacked faster.

-- ---- Unpacking -----------------------------------------------------------------------------------

-- The values of a packed series: each is the one before plus a step. A window function did the same with numerics, in twice the time.
CREATE FUNCTION part_unpack(first bigint, unit bigint, least_step bigint, width integer, steps bytea, place integer, count integer)
    RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    these bigint[] := array_fill(first, ARRAY[count + 1]);
BEGIN
    FOR i IN 1 .. count LOOP
        these[i + 1] := these[i] + unit * (least_step + get_byte(steps, place + i - 1)
            + CASE WHEN width > 1 THEN (get_byte(steps, place + count + i - 1) << 8)
            + CASE WHEN width > 2 THEN (get_byte(steps, place + 2 * count + i - 1) << 16)
            + CASE WHEN width > 3 THEN (get_byte(steps, place + 3 * count + i - 1)::bigint << 24)
            + CASE WHEN width > 4 THEN (get_byte(steps, place + 4 * count + i - 1)::bigint << 32)
            + CASE WHEN width > 5 THEN (get_byte(steps, place + 5 * count + i - 1)::bigint << 40)
              ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END ELSE 0 END);
    END LOOP;
    RETURN these;
END $$;
COMMENT ON FUNCTION part_unpack IS 'The values of one packed series of a chunk; place and count say where its steps are.';

-- The same as before.
CREATE OR REPLACE FUNCTION part_values(parts bigint[], series bigint[], steps bytea, samples integer, n bigint)
    RETURNS TABLE (these bigint[]) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN series IS NULL THEN parts[(n - 1) * samples + 1 : n * samples]
                WHEN s.width = 0 THEN array_fill(s.first, ARRAY[samples])
                ELSE part_unpack(s.first, s.unit, s.least, s.width::integer, steps, s.place, samples - 1) END
      FROM (SELECT series[n] AS first, series[2 * kinds + n] AS unit, series[3 * kinds + n] AS least, series[4 * kinds + n] AS width,
                   (samples - 1) * (SELECT coalesce(sum(before), 0)::integer FROM unnest(series[4 * kinds + 1 : 4 * kinds + n - 1]) before) AS place
              FROM (SELECT cardinality(series) / 5 AS kinds) k OFFSET 0) s
    OFFSET 0;
END;

-- The values of the first parts of a chunk, part by part. The steps are decompressed once.
CREATE FUNCTION parts_unpack(parts bigint[], series bigint[], steps bytea, samples integer, most integer)
    RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    kinds integer := cardinality(series) / 5;
    bytes bytea := steps || ''::bytea;
    place integer := 0;
    width integer;
    these bigint[] := '{}';
BEGIN
    IF series IS NULL THEN
        RETURN coalesce(parts[1 : most * samples], '{}');
    END IF;
    FOR n IN 1 .. coalesce(most, 0) LOOP
        width := series[4 * kinds + n];
        IF width = 0 THEN
            these := these || array_fill(series[n], ARRAY[samples]);
        ELSE
            these := these || part_unpack(series[n], series[2 * kinds + n], series[3 * kinds + n], width, bytes, place, samples - 1);
            place := place + width * (samples - 1);
        END IF;
    END LOOP;
    RETURN these;
END $$;
COMMENT ON FUNCTION parts_unpack IS 'The values of the first parts in a chunk, packed or plain, part by part.';

-- The same as before.
CREATE OR REPLACE FUNCTION parts_values(parts bigint[], series bigint[], steps bytea, samples integer, kinds integer)
    RETURNS TABLE (parts bigint[]) LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT parts_unpack(parts_values.parts, series, steps, samples, kinds) OFFSET 0;
END;

-- ---- Reading -------------------------------------------------------------------------------------

-- The samples of one host that are in no chunk, each as a chunk of one. Planning this takes longer than reading it. A session keeps the plans of this function.
CREATE FUNCTION host_chunks_loose(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (hour timestamptz, agent_id uuid, sampled_at timestamptz[], seq bigint[],
                   cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
                   memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
                   uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[],
                   mount_points text[], disk_bytes bigint[])
    LANGUAGE plpgsql STABLE ROWS 100 SET search_path = pg_catalog, public, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT date_bin(interval '1 hour', o.sampled_at, timestamptz 'epoch'), n.agent_id, ARRAY[o.sampled_at], ARRAY[o.seq],
           ARRAY[o.cpu_percent], ARRAY[o.load_1m], ARRAY[o.load_5m], ARRAY[o.load_15m],
           ARRAY[o.memory_used_bytes], ARRAY[o.memory_total_bytes], ARRAY[o.swap_used_bytes], ARRAY[o.swap_total_bytes],
           ARRAY[o.uptime_seconds], ARRAY[o.process_count], ARRAY[o.network_rx_bytes], ARRAY[o.network_tx_bytes],
           ARRAY(SELECT p.name FROM shape_parts(s.parts) p WHERE p.kind = 'disk_used'),
           ARRAY(SELECT o.parts[p.n] FROM shape_parts(s.parts) p WHERE p.kind IN ('disk_used', 'disk_total'))
      FROM host_vitals v
     CROSS JOIN LATERAL samples_loose(v.host_no, since, until + interval '1 microsecond') o
      LEFT JOIN agent_numbers n ON n.agent_no = o.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = o.host_no AND s.shape = o.shape
     WHERE v.host_id = host
     UNION ALL
    SELECT date_bin(interval '1 hour', m.sampled_at, timestamptz 'epoch'), m.agent_id, ARRAY[m.sampled_at], ARRAY[m.seq],
           ARRAY[m.cpu_percent::real], ARRAY[least(m.load_1m, 3.4e38)::real], ARRAY[least(m.load_5m, 3.4e38)::real], ARRAY[least(m.load_15m, 3.4e38)::real],
           ARRAY[m.memory_used_bytes], ARRAY[m.memory_total_bytes], ARRAY[m.swap_used_bytes], ARRAY[m.swap_total_bytes],
           ARRAY[m.uptime_seconds], ARRAY[least(m.process_count, 2147483647)::integer], ARRAY[m.network_rx_bytes], ARRAY[m.network_tx_bytes],
           ARRAY(SELECT d.mount_point FROM jsonb_to_recordset(m.disks) AS d(mount_point text)),
           ARRAY(SELECT unnest(ARRAY[d.used_bytes, d.total_bytes]) FROM jsonb_to_recordset(m.disks) AS d(used_bytes bigint, total_bytes bigint))
      FROM host_metrics_old m
     WHERE m.host_id = host AND m.sampled_at >= since AND m.sampled_at <= until;
END $$;
COMMENT ON FUNCTION host_chunks_loose IS 'The samples of one host that are in no chunk, as host_chunks returns them.';

-- The samples of one host as arrays: an hour that is compacted is a row, or several if it has several agents or lists of disks; a sample that is not
-- compacted yet is a row of its own. The rows are of whole hours, so a reader ignores the samples before `since` and after `until`.
-- The disks are the first parts of a shape, each followed by its size.
-- One SELECT, which the planner inlines: an array that a query does not select is neither decompressed nor computed.
CREATE FUNCTION host_chunks(host uuid, since timestamptz, until timestamptz)
    RETURNS TABLE (hour timestamptz, agent_id uuid, sampled_at timestamptz[], seq bigint[],
                   cpu_percent real[], load_1m real[], load_5m real[], load_15m real[],
                   memory_used_bytes bigint[], memory_total_bytes bigint[], swap_used_bytes bigint[], swap_total_bytes bigint[],
                   uptime_seconds bigint[], process_count integer[], network_rx_bytes bigint[], network_tx_bytes bigint[],
                   mount_points text[], disk_bytes bigint[])
    LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.hour, n.agent_id, ARRAY(SELECT (SELECT c.hour + interval '30 minutes') + unnest(c.at) * interval '1 microsecond'),
           CASE WHEN c.seqs IS NULL THEN ARRAY(SELECT generate_series(c.first_seq, c.first_seq + cardinality(c.at) - 1))
                ELSE ARRAY(SELECT c.first_seq + unnest(c.seqs)) END,
           c.cpu_percent, c.load_1m, c.load_5m, c.load_15m,
           c.memory_used_bytes, c.memory_total_bytes, c.swap_used_bytes, c.swap_total_bytes,
           ARRAY(SELECT unnest(c.uptime_seconds) + unnest(c.at) / 1000000), c.process_count, c.network_rx_bytes, c.network_tx_bytes,
           ARRAY(SELECT p.name FROM shape_parts(s.parts) p WHERE p.kind = 'disk_used'),
           parts_unpack(c.parts_plain, c.parts_series, c.parts_steps, cardinality(c.at),
                        2 * jsonb_array_length(jsonb_path_query_array(s.parts, '$[*] ? (@.kind == "disk_used")')))
      FROM host_vitals v
      JOIN sample_chunks c ON c.host_no = v.host_no
      LEFT JOIN agent_numbers n ON n.agent_no = c.agent_no
      LEFT JOIN sample_shapes s ON s.host_no = c.host_no AND s.shape = c.shape
     WHERE v.host_id = host AND c.hour >= date_bin(interval '1 hour', since, timestamptz 'epoch') AND c.hour <= until
     UNION ALL
    SELECT * FROM host_chunks_loose(host, since, until);
END;
COMMENT ON FUNCTION host_chunks IS 'The samples of one host from one time to another as arrays, in rows of whole hours or single samples. disk_bytes has, of one mount point after the other, the bytes in use in all samples of the row, then the total bytes in all of them.';
REVOKE EXECUTE ON FUNCTION host_chunks_loose, host_chunks FROM PUBLIC;

-- It returned the disks alone, as a row for each sample and disk.
DROP FUNCTION host_disk_samples;
