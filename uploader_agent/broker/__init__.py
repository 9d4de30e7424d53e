"""What the Kafka cluster says: its configuration, who leads, offsets, and evidence of what is committed."""
