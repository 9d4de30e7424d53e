"""Tidemark's part in Airflow: wait for watermarks, plan, have Spark convert, publish what landed.

A DAG file needs :func:`tidemark_airflow.ingest.ingest_dag` and :func:`tidemark_airflow.backfill.backfill_dag` alone.
Importing the package does nothing but define: no connection, no network, no heavy library. What a run knows
lies in the store (ledger, plan, result, outbox pointer); Airflow carries names of objects and small numbers, so any
task may be killed and run again.

* :mod:`tidemark_airflow.settings`    where the topics file and Spark's programs are
* :mod:`tidemark_airflow.pending`     what the watermarks promise beyond the ledger, and whether to start a run
* :mod:`tidemark_airflow.scan`        the brokers' watermark indexes, read as they change
* :mod:`tidemark_airflow.trigger`     one scan for all waiting topics
* :mod:`tidemark_airflow.notifications`  the same, told by S3 through a queue: :mod:`tidemark_airflow.sqs`,
  :mod:`tidemark_airflow.s3_events`, and :mod:`tidemark_airflow.overlay` for what is known beyond the last scan
* :mod:`tidemark_airflow.sensor`      the task that waits without a worker, and plans
* :mod:`tidemark_airflow.backoff`     how long it waits after failed runs
* :mod:`tidemark_airflow.spark`       spark-submit, never by accident on YARN, or a client of Spark Connect
* :mod:`tidemark_airflow.children`    the processes that a task starts, ended with it
* :mod:`tidemark_airflow.publishing`  asset events of what has landed and what has closed
* :mod:`tidemark_airflow.extra_links`  the buttons on a task's page
* :mod:`tidemark_airflow.outbox`      what of the ledger has been published
* :mod:`tidemark_airflow.watch`       the DAG that looks for what is wrong
* :mod:`tidemark_airflow.imports`     whether the DAG files import
* :mod:`tidemark_airflow.alerts`      who tells people
* :mod:`tidemark_airflow.telling`     what they are told
* :mod:`tidemark_airflow.webhook`     a notifier for any web hook
* :mod:`tidemark_airflow.tasks`       what the tasks of all DAGs share
* :mod:`tidemark_airflow.ingest`      the DAG of a topic
* :mod:`tidemark_airflow.backfill`    the DAG of backfills, and its form
* :mod:`tidemark_airflow.backfilling`  its tasks: preview, compare, result
* :mod:`tidemark_airflow.approving`   its task that asks a person
"""
