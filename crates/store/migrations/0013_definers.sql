-- Functions that run with their owner's rights call exactly the operators and functions that they mean.
--
-- If no operator or function takes exactly the given argument types, PostgreSQL chooses the closest one
-- among all schemas of the search path. Our schema is one of them. A role that may create objects there
-- could add a closer one, which would then run with the owner's rights. (The type of a literal without a
-- cast is unknown, and a function of pg_catalog with an argument type like anyelement is never an exact match.)
--
-- The functions are edited in place instead of being repeated here, so that this migration keeps whatever
-- else earlier migrations made of them.

DO $$
DECLARE edit record;
BEGIN
    FOR edit IN
        SELECT * FROM (VALUES
            ('approve_agent', $e$'superseded by ' || agent)$e$, $e$'superseded by '::text || agent::text)$e$),
            ('host_for_clone', $e$agent.facts -> 'identifiers'$e$, $e$agent.facts -> 'identifiers'::text$e$),
            ('host_for_clone', $e$, jsonb_populate_record(h$e$, $e$, pg_catalog.jsonb_populate_record(h$e$),
            ('same_machine', $e$ array_position($e$, $e$ pg_catalog.array_position($e$))
            AS edits(name, before, after)
    LOOP
        EXECUTE replace(pg_get_functiondef(edit.name::regproc), edit.before, edit.after);
    END LOOP;
END $$;
