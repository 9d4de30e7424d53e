"""Questions to the Kafka cluster: its configuration, its leaders, offsets, and evidence of committed records."""
