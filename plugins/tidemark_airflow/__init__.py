"""Tidemark's part in Airflow: waits for watermarks, plans, converts with Spark, and publishes landed dates.

A DAG file needs only ``dag_factories.ingest.ingest_dags`` and ``dag_factories.backfill.backfill_dag``.
Importing the package only defines: no connection, no network, no heavy library. The state of a run is in the store
(ledger, plan, result, outbox pointer); Airflow carries names of objects and small numbers, so any task may be killed
and run again.
"""
