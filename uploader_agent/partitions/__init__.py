"""The partitions that this broker leads: their state on disk, broker and store, and the next jobs."""
