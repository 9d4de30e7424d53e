"""Proves a table equal to the raw segments that it was made from, and to its evidence."""
