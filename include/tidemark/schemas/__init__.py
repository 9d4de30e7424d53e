"""Schemas that follow a registry: additions of a newer schema are adopted, and other changes wait for a person."""
