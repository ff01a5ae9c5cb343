-- The list of hosts, for the web application and other readers.

CREATE VIEW host_overview AS
    SELECT h.id, h.hostname, h.os, h.os_version, h.arch, h.labels, h.created_at, h.retired_at,
           a.id AS agent_id, a.version AS agent_version,
           coalesce(s.presence = 'online', false) AS online, s.presence_since, s.cause AS presence_cause,
           CASE WHEN s.presence = 'online' THEN greatest(s.last_seen_at, least(i.renewed_at, now())) ELSE s.last_seen_at END AS last_seen_at,
           s.clock_skew_ms,
           v.vitals_at, h.cpu_count, v.cpu_percent::double precision, v.load_1m::double precision, v.memory_used_bytes,
           coalesce(v.memory_total_bytes, h.memory_total_bytes) AS memory_total_bytes,
           v.fullest_disk_percent, v.fullest_disk_mount_point,
           disks_json(d.disks, d.parts, v.parts) AS disks,
           v.spool_problem, v.unreadable_mounts
      FROM hosts h
      LEFT JOIN agents a ON a.host_id = h.id AND a.status = 'active'
      LEFT JOIN agent_state s ON s.agent_id = a.id
      LEFT JOIN ingest_instances i ON i.id = s.instance_id
      JOIN host_vitals v ON v.host_id = h.id
      LEFT JOIN sample_shapes d ON d.shape = v.shape;

COMMENT ON VIEW host_overview IS 'Machines with their active agent, its presence and its latest vitals, ready to be listed.';
COMMENT ON COLUMN host_overview.id IS 'The host.';
COMMENT ON COLUMN host_overview.agent_id IS 'Its active agent; null when it has none.';
COMMENT ON COLUMN host_overview.agent_version IS 'Version of that agent.';
COMMENT ON COLUMN host_overview.online IS 'Whether that agent has a live stream.';
COMMENT ON COLUMN host_overview.presence_cause IS 'Why.';
COMMENT ON COLUMN host_overview.last_seen_at IS 'When it was last heard; while it is online, when its instance last renewed its lease.';
COMMENT ON COLUMN host_overview.clock_skew_ms IS 'Its clock minus the database''s.';
COMMENT ON COLUMN host_overview.memory_total_bytes IS 'Memory installed.';
COMMENT ON COLUMN host_overview.disks IS 'File systems: [{mount_point, device, fs_type, total_bytes, used_bytes}].';
SELECT comments_copy('host_overview', 'hosts'), comments_copy('host_overview', 'agent_state'), comments_copy('host_overview', 'host_vitals');
DROP FUNCTION comments_copy;
