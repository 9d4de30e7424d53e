"""Sensors: waiting for watermarks, and for a while after failures."""
