"""Tests of :mod:`tidemark.table`."""
