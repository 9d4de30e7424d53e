"""Alerts: what is said of an incident, and by which way."""
