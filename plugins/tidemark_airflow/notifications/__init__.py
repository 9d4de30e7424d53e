"""Alerts: the messages about incidents, and their delivery."""
