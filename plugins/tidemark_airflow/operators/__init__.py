"""Operators: Spark jobs, the steps of a backfill, approval."""
