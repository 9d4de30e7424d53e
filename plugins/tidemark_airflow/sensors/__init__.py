"""Sensors: wait for watermarks, and for a while after failures."""
