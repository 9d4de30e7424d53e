"""Rebuilds dates of a table, and reports the differences before and after."""
