"""Merges of schemas, and the state of what was adopted."""
