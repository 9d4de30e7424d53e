"""Merging small files of a table into larger ones; no row changes."""
