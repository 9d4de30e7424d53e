"""Tidemark's part in Airflow: waits for watermarks, plans, converts with Spark, and publishes landed dates.

A DAG file needs only ``dag_factories.ingest.ingest_dags`` and ``dag_factories.backfill.backfill_dag``.
Importing the package only defines: no connection, no network, no heavy library. The state of a run is in the store
(ledger, plan, result, outbox pointer); Airflow carries names of objects and small numbers, so any task may be killed
and run again.

* ``provider``, ``plugin``: the package's description for Airflow, and the parts that Airflow mounts
* ``options``, ``configuration``: the section ``[tidemark]``
* ``settings``: the places of the topics file and of Spark's programs
* ``dag_factories``: the DAGs of a deployment, from its topics file: ingest, backfill, maintenance, monitor
* ``sensors``: the task that waits without a worker, and plans; its waits after failed runs
* ``triggers``: one scan of the watermark indexes for all waiting topics
* ``submitters``: run a job: with spark-submit, never by accident on YARN, Spark Connect, or on a platform
* ``operators``: Spark's jobs as tasks; the tasks of a backfill
* ``assets``: asset events of landed and closed dates, and the published part of the ledger
* ``links``: addresses of pages, and the buttons on a task's page
* ``notifications``: notifiers that report incidents to people, and their messages
* ``web``: the continuity page, with its API and its rights
* ``planned``: a plan in the form that one task passes to the next
"""
