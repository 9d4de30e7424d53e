"""A DAG of a whole group of topics, and its job: measured by ``bench.cadence``."""
