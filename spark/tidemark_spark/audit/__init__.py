"""Proves a table equal to its raw segments and to its evidence."""
