"""The Protobuf parser."""
