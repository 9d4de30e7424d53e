"""The JSON parser."""
