-- Autovacuum analyses the two tables that every heartbeat changes more seldom.
--
-- A tenth of their rows changes within seconds, so they were analysed once a minute. Nothing that plans depend on changes that
-- fast. Now they are analysed after ten changes for each row: every five minutes if agents report every 30 seconds.
ALTER TABLE agent_state SET (autovacuum_analyze_scale_factor = 10);
ALTER TABLE host_vitals SET (autovacuum_analyze_scale_factor = 10);

-- ANALYZE counts the elements of arrays, which took most of its time here, for statistics that no query uses.
ALTER TABLE host_vitals ALTER COLUMN parts SET STATISTICS 0;
