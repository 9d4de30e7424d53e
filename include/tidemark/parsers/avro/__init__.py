"""The Avro parser."""
