-- Each instance compares the streams that it holds with those that stand here, every few
-- seconds. Both indexes answer that alone, so that a look costs what one instance holds,
-- however large the fleet is.

CREATE INDEX agent_state_held ON agent_state (instance_id) INCLUDE (agent_id, epoch) WHERE instance_id IS NOT NULL;
DROP INDEX agent_state_instance;

CREATE INDEX agents_not_active ON agents (id) WHERE status <> 'active';
