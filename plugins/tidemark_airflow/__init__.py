"""Tidemark's part in Airflow: wait for watermarks, plan, have Spark convert, publish what landed.

A DAG file needs ``dag_factories.ingest.ingest_dags`` and ``dag_factories.backfill.backfill_dag`` alone.
Importing the package does nothing but define: no connection, no network, no heavy library. What a run knows
lies in the store (ledger, plan, result, outbox pointer); Airflow carries names of objects and small numbers, so any
task may be killed and run again.

* ``provider``, ``plugin``: what Airflow knows about the package, and what it mounts
* ``options``, ``configuration``: the section ``[tidemark]``
* ``settings``: where the topics file and Spark's programs are
* ``dag_factories``: the DAGs of a deployment, by its topics file: ingest, backfill, maintenance, monitor
* ``sensors``: the task that waits without a worker, and plans; how long it waits after failed runs
* ``triggers``: one scan of the watermark indexes for all waiting topics
* ``submitters``: what runs a job: spark-submit, never by accident on YARN, Spark Connect, or a platform
* ``operators``: Spark's jobs as tasks; the tasks of a backfill
* ``assets``: asset events of what has landed and what has closed, and what of the ledger has been published
* ``links``: addresses of pages, and the buttons on a task's page
* ``notifications``: who tells people of incidents, and what they are told
* ``web``: the continuity page, with its API and its rights
* ``planned``: a plan as one task hands it to the next
"""
