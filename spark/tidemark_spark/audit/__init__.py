"""Proving a table equal to the raw segments that it was made of, and to its evidence."""
