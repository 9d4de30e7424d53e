"""Converts raw segments to rows of Parquet files and to evidence, in a worker."""
