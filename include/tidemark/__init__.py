"""Tidemark's shared contract: what lies in the store, what Kafka's files mean, and who may write what.

The agent, the Spark jobs and the Airflow DAGs never import one another. They meet in objects in a store,
and every format of those objects is defined in this package, which imports neither airflow nor pyspark.
Start with :mod:`tidemark.layout` (where things lie), :mod:`tidemark.manifest` and :mod:`tidemark.watermark`
(what the agent promises), and :mod:`tidemark.ledger` (what a table holds).
"""
