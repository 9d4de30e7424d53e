"""Schemas that follow a registry: what a newer one adds is adopted, and the rest waits for a person."""
