"""The continuity page: what became of every offset, for people. :func:`tidemark_airflow.page.app.page_app` makes it.

* :mod:`tidemark_airflow.page.access`   who may see and do what, by Airflow's own authorization
* :mod:`tidemark_airflow.page.reading`  what the API reads, kept for seconds
* :mod:`tidemark_airflow.page.evidence` evidence, kept since it never changes
* :mod:`tidemark_airflow.page.indexes`  the brokers' watermark indexes, kept packed
* :mod:`tidemark_airflow.page.models`   what the API answers and takes
* :mod:`tidemark_airflow.page.answers`  ... and how it is made of what was read
* :mod:`tidemark_airflow.page.strips`   a partition as a strip of offsets
* :mod:`tidemark_airflow.page.api`      the routes
* :mod:`tidemark_airflow.page.reports`  the reports of backfills
* :mod:`tidemark_airflow.page.app`      the application: headers, errors, the page's files
"""
