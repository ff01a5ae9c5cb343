-- Partitions: made ahead for the days of chunks, the months of rollups and the hours in which samples arrive. The service drops them
-- (retention.rs), because a detach that blocks nobody cannot be part of a transaction.
--
-- Names and bounds are in UTC, whatever the time zone of the session is.

-- A new partition is attached: CREATE TABLE … PARTITION OF would wait for every reader and writer of the table. A partition that an
-- earlier detach has left is attached again, with its rows.
CREATE FUNCTION partition_ensure(parent text, suffix text, begins timestamptz, ends timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE name text := parent || '_' || suffix;
BEGIN
    IF EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent::regclass AND inhrelid = to_regclass(name)) THEN
        RETURN false;
    ELSIF to_regclass(name) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL EXCLUDING INDEXES)', name, parent);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, name, begins::text, ends::text);
    RETURN true;
END $$;
COMMENT ON FUNCTION partition_ensure IS 'Makes and attaches the partition of a table for a span of time. Returns whether it was missing.';

-- ---- Days of chunks and months of rollups --------------------------------------------------------

-- LIKE leaves the targets of statistics out.
CREATE FUNCTION chunks_partition_ensure(begins timestamptz) RETURNS boolean LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE suffix text := to_char(begins, 'YYYYMMDD');
BEGIN
    IF NOT partition_ensure('sample_chunks', suffix, begins, begins + interval '1 day') THEN
        RETURN false;
    END IF;
    PERFORM chunks_without_statistics(('sample_chunks_' || suffix)::regclass);
    RETURN true;
END $$;
COMMENT ON FUNCTION chunks_partition_ensure IS 'Makes the partition of sample_chunks for a day. Returns whether it was missing.';

CREATE FUNCTION rollups_partition_ensure(hour timestamptz) RETURNS void LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE month timestamptz := date_trunc('month', hour);
BEGIN
    PERFORM partition_ensure('host_rollups', to_char(month, 'YYYYMM'), month, month + interval '1 month');
END $$;
COMMENT ON FUNCTION rollups_partition_ensure IS 'Makes the partition of host_rollups for the month of an hour.';

-- The first hour after a day is rolled up with it, because its increases start at the day's last samples. A day that fails is reported, and
-- the others are made all the same.
CREATE FUNCTION metrics_partitions_ensure(retention interval) RETURNS TABLE (day date, problem text)
    LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE begins timestamptz;
BEGIN
    FOR begins IN
        SELECT generate_series(date_trunc('day', now() - retention) - interval '1 day', date_trunc('day', now()) + interval '2 days', '1 day')
    LOOP
        BEGIN
            PERFORM rollups_partition_ensure(begins), rollups_partition_ensure(begins + interval '1 day');
            CONTINUE WHEN NOT chunks_partition_ensure(begins);
            problem := NULL;
        EXCEPTION WHEN OTHERS THEN
            problem := sqlerrm;
        END;
        day := begins;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION metrics_partitions_ensure IS 'Makes the partitions for the days within the retention and the next two. Returns the days that were missing, and why one still is.';

CREATE VIEW sample_days AS
    SELECT to_date(substring(c.relname FROM '^sample_chunks_(\d{8})$'), 'YYYYMMDD') AS day, i.inhdetachpending AS detaching
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'sample_chunks'::regclass;
COMMENT ON VIEW sample_days IS 'The days that have a partition of sample_chunks.';
COMMENT ON COLUMN sample_days.day IS 'The day in UTC.';
COMMENT ON COLUMN sample_days.detaching IS 'Whether a detach of the partition has begun: queries see its rows no longer.';

-- ---- Hours of arrival ----------------------------------------------------------------------------

CREATE VIEW sample_hours_missing AS
    SELECT due.hour
      FROM generate_series(date_trunc('hour', samples_now(), 'UTC'), samples_now() + interval '3 hours', interval '1 hour') due(hour)
     WHERE NOT EXISTS (SELECT FROM sample_hours h WHERE h.arrived_hour = due.hour);
COMMENT ON VIEW sample_hours_missing IS 'The hours, of this one and the next three, that have no partition of samples_open.';
COMMENT ON COLUMN sample_hours_missing.hour IS 'When the hour begins.';

-- A partition lives for hours, is never changed and is dropped as a whole: nothing is there to vacuum.
CREATE FUNCTION sample_hours_ensure() RETURNS integer LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    due  timestamptz;
    name text;
    made integer := 0;
BEGIN
    FOR due IN SELECT hour FROM sample_hours_missing LOOP
        name := 'samples_open_' || to_char(due, 'YYYYMMDDHH24');
        IF partition_ensure('samples_open', to_char(due, 'YYYYMMDDHH24'), due, due + interval '1 hour') THEN
            EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = false)', name);
            EXECUTE format('COMMENT ON TABLE %I IS %L', name, 'Samples that arrived in one hour.');
        END IF;
        INSERT INTO sample_hours (arrived_hour) VALUES (due);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION sample_hours_ensure IS 'Makes the partitions of sample_hours_missing. Returns how many.';

REVOKE EXECUTE ON FUNCTION
    partition_ensure, chunks_partition_ensure, rollups_partition_ensure, metrics_partitions_ensure, sample_hours_ensure FROM PUBLIC;

-- Samples can be stored at once.
SELECT sample_hours_ensure();
