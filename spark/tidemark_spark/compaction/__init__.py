"""Merges small files of a table into larger files; no row changes."""
