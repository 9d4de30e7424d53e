"""Kafka's log directories on this host: partitions, segments, the active segment, changes."""
