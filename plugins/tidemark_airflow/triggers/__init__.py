"""Triggers: waits that the triggerer takes over from tasks."""
