-- Samples that the database itself refuses, five times over, become gaps that say so.

ALTER TABLE metric_gaps DROP CONSTRAINT metric_gaps_kind_check;
ALTER TABLE metric_gaps ADD CONSTRAINT metric_gaps_kind_check
    CHECK (kind IN ('not sent', 'declared', 'rejected', 'not kept', 'dead letter')) NOT VALID;
ALTER TABLE metric_gaps VALIDATE CONSTRAINT metric_gaps_kind_check;

COMMENT ON COLUMN metric_gaps.kind IS
    'not sent (skipped), declared (the agent lost them), rejected (broke the rules), not kept (their day was dropped before they could be stored), or dead letter (the database refused them).';
