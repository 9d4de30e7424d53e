"""State tables: for each key its newest record, merged by leaves of the keys' hashes in two rounds of tasks."""
