"""Reports: pure functions of the record of a run (SCHEMA.md)."""
