"""Kafka's log directories as they lie on this host: partitions, segments, the active segment, changes."""
