-- The days that have a partition, in one place.
--
-- Five queries read the day from the last eight letters of a partition's name. PostgreSQL may read the names of all tables
-- before it looks which of them are partitions; it does so as soon as it has statistics of pg_inherits. Then the query failed,
-- because "inherits" is no date. The pattern makes the day of every other name NULL.

CREATE VIEW sample_days AS
    SELECT inhparent::regclass AS parent,
           to_date(substring(relname FROM '^(?:sample_chunks|host_metrics_old)_(\d{8})$'), 'YYYYMMDD') AS day,
           inhdetachpending AS detaching
      FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent IN ('sample_chunks'::regclass, 'host_metrics_old'::regclass);

COMMENT ON VIEW sample_days IS 'The days that have a partition of sample_chunks or host_metrics_old, and whether it is being detached.';
COMMENT ON COLUMN sample_days.parent IS 'The partitioned table.';
COMMENT ON COLUMN sample_days.day IS 'The day in UTC.';
COMMENT ON COLUMN sample_days.detaching IS 'Whether a detach of the partition has begun: queries see its rows no longer.';
