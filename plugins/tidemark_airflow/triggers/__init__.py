"""Triggers: what the triggerer waits for in place of a task."""
