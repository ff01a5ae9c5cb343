-- Moves of agents to other cells: the cells that people have named here, and which agents are told to move to which.
--
-- A cell is a database with its instances. It knows of others only what people say here, and an agent comes from another cell only after
-- somebody has said so in both: `cell import` there, `cell move` here.

CREATE TABLE cells (
    name         text        PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    addresses    text[]      NOT NULL CHECK (cardinality(addresses) BETWEEN 1 AND 16 AND octet_length(array_to_string(addresses, ',')) <= 4096),
    certificates bytea[]     NOT NULL DEFAULT '{}' CHECK (cardinality(certificates) <= 16 AND octet_length(array_to_string(certificates, '')) <= 65536),
    added_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    added_by     text        NOT NULL CHECK (octet_length(added_by) <= 255)
);
COMMENT ON TABLE cells IS 'Other cells, to which agents of this one can be moved.';
COMMENT ON COLUMN cells.name IS 'What agents and people call it.';
COMMENT ON COLUMN cells.addresses IS 'Where its instances serve agents, host:port.';
COMMENT ON COLUMN cells.certificates IS 'The certificates that verify them, DER. Empty: those that agents trust already.';
COMMENT ON COLUMN cells.added_at IS 'When it was added or last changed.';
COMMENT ON COLUMN cells.added_by IS 'Who did that, as they said.';

CREATE TABLE agent_moves (
    agent_id   uuid        PRIMARY KEY REFERENCES agents ON DELETE CASCADE,
    cell       text        NOT NULL REFERENCES cells,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by   text        NOT NULL CHECK (octet_length(asked_by) <= 255),
    problem    text        NOT NULL DEFAULT '' CHECK (octet_length(problem) <= 500),
    problem_at timestamptz,
    moved_at   timestamptz
);
CREATE INDEX agent_moves_cell ON agent_moves (cell);
CREATE INDEX agent_moves_open ON agent_moves (agent_id) WHERE moved_at IS NULL;
COMMENT ON TABLE agent_moves IS 'Agents that are told to move to another cell, or have moved there. One that has moved is told again whenever it asks here.';
COMMENT ON COLUMN agent_moves.agent_id IS 'The agent.';
COMMENT ON COLUMN agent_moves.cell IS 'Where it is to live.';
COMMENT ON COLUMN agent_moves.asked_at IS 'Since when.';
COMMENT ON COLUMN agent_moves.asked_by IS 'Who said so, as they said.';
COMMENT ON COLUMN agent_moves.problem IS 'Why it has not moved, as it said last; empty: it said nothing.';
COMMENT ON COLUMN agent_moves.problem_at IS 'When it said that.';
COMMENT ON COLUMN agent_moves.moved_at IS 'When it left for that cell; null while it has not, or is back.';

-- Membership by the hash of rollouts: a larger share has all agents of a smaller one. The serial 0 is no release.
CREATE FUNCTION move_agents(to_cell text, selector jsonb, among uuid[], threshold integer, actor text,
                            OUT marked integer, OUT unable integer)
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM cells c WHERE c.name = to_cell) THEN
        RAISE EXCEPTION 'there is no cell %', to_cell USING ERRCODE = 'SV404', HINT = 'add it first: svc-ingest cell add';
    END IF;
    WITH meant AS (
        SELECT a.id, 'cells' = ANY (a.capabilities) AS able
          FROM agents a
          JOIN hosts h ON h.id = a.host_id AND h.labels @> selector AND h.retired_at IS NULL
          JOIN agent_state s ON s.agent_id = a.id AND s.presence <> 'moved'
         WHERE a.status = 'active' AND (among IS NULL OR a.id = ANY (among)) AND rollout_place(a.id, 0) < threshold),
    told AS (
        INSERT INTO agent_moves AS m (agent_id, cell, asked_by)
        SELECT meant.id, to_cell, left(actor, 255) FROM meant WHERE meant.able ORDER BY meant.id
            ON CONFLICT (agent_id) DO UPDATE SET cell = excluded.cell, asked_at = clock_timestamp(), asked_by = excluded.asked_by,
               problem = '', problem_at = NULL, moved_at = NULL
         WHERE m.cell <> excluded.cell
        RETURNING m.agent_id),
    noted AS (
        INSERT INTO agent_events (agent_id, kind, actor, reason)
        SELECT told.agent_id, 'cell', left(actor, 255), 'told to move to cell ' || to_cell FROM told)
    SELECT (SELECT count(*) FROM told), (SELECT count(*) FROM meant WHERE NOT meant.able) INTO marked, unable;
END $$;
COMMENT ON FUNCTION move_agents IS 'Tells the active agents of hosts with these labels, or those among some, to move to a cell, as far as their places are below the threshold. Returns how many were told now, and how many do not know how to move.';

CREATE FUNCTION stop_moves(selector jsonb, among uuid[], actor text) RETURNS integer LANGUAGE sql AS $$
    WITH stopped AS (
        DELETE FROM agent_moves m USING agents a, hosts h
         WHERE a.id = m.agent_id AND h.id = a.host_id AND h.labels @> selector AND m.moved_at IS NULL
           AND (among IS NULL OR m.agent_id = ANY (among))
        RETURNING m.agent_id, m.cell),
    noted AS (
        INSERT INTO agent_events (agent_id, kind, actor, reason)
        SELECT stopped.agent_id, 'cell', left(actor, 255), 'no longer told to move to cell ' || stopped.cell FROM stopped)
    SELECT count(*)::integer FROM stopped;
$$;
COMMENT ON FUNCTION stop_moves IS 'Takes back what agents are told that have not moved yet. Returns of how many.';

-- The watermark only rises: an older export never takes numbers back. An agent that has a stream here has arrived already.
CREATE FUNCTION expect_agent(agent uuid, elsewhere bigint, new_labels jsonb, actor text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_state s
       SET moved_count = s.moved_count + greatest(elsewhere - s.acked_seq, 0), acked_seq = greatest(s.acked_seq, elsewhere),
           presence = CASE s.presence WHEN 'online' THEN 'online' ELSE 'moved' END,
           presence_since = CASE s.presence WHEN 'offline' THEN now() ELSE s.presence_since END
     WHERE s.agent_id = agent;
    DELETE FROM agent_moves m WHERE m.agent_id = agent;
    UPDATE hosts h SET labels = h.labels || new_labels FROM agents a
     WHERE a.id = agent AND h.id = a.host_id AND NOT h.labels @> new_labels AND labels_problem(h.labels || new_labels) IS NULL;
    INSERT INTO agent_events (agent_id, kind, actor, reason)
    VALUES (agent, 'cell', left(actor, 255), 'expected from another cell, which has its numbers up to ' || elsewhere);
END $$;
COMMENT ON FUNCTION expect_agent IS 'Notes that an agent of this cell is to arrive from another one, which has acknowledged its numbers up to `elsewhere`.';

REVOKE EXECUTE ON FUNCTION move_agents, stop_moves, expect_agent FROM PUBLIC;
