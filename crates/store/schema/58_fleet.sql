-- The fleet at a glance: what the web application shows of all hosts together. One instance counts once a minute (fleet_pictures.rs), so that
-- reading it costs the same for every fleet.

-- Five minutes apart, so a day is some hundred rows.
CREATE TABLE fleet_presence (
    at      timestamptz PRIMARY KEY,
    online  integer NOT NULL,
    offline integer NOT NULL
);
COMMENT ON TABLE fleet_presence IS 'How many active agents were online in the last day. Five minutes without a row were not counted: no instance ran, or the database was away.';
COMMENT ON COLUMN fleet_presence.at IS 'When the five minutes begin; the counts are the last of them.';
COMMENT ON COLUMN fleet_presence.online IS 'Active agents with a live stream.';
COMMENT ON COLUMN fleet_presence.offline IS 'Active agents without one.';

CREATE TABLE fleet_pictures (
    singleton boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    at        timestamptz NOT NULL,
    measured  integer     NOT NULL,
    pictures  jsonb       NOT NULL
);
COMMENT ON TABLE fleet_pictures IS 'One row: the distributions of the latest vitals of the hosts that are online, the highest of them, and the versions of agents. No row before the first count.';
COMMENT ON COLUMN fleet_pictures.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN fleet_pictures.at IS 'When the fleet was counted.';
COMMENT ON COLUMN fleet_pictures.measured IS 'How many hosts were online and had vitals.';
COMMENT ON COLUMN fleet_pictures.pictures IS 'The counts: {online, offline, cpu, memory, disk, versions: [{version, agents}]}. Each of cpu, memory and disk is {bins, worst: [{host_id, hostname, percent}]}, with a bin of hosts for each 5 percent.';
