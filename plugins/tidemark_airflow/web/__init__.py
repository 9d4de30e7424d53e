"""The continuity page: what became of every offset, for people. :func:`tidemark_airflow.web.app.page_app` makes it.

* :mod:`tidemark_airflow.web.auth`   who may see and do what, by Airflow's own authorization
* :mod:`tidemark_airflow.web.reader`  what the API reads, kept for seconds
* :mod:`tidemark_airflow.web.packed_indexes`  the brokers' watermark indexes, kept packed
* :mod:`tidemark_airflow.web.models`   what the API answers and takes
* :mod:`tidemark_airflow.web.responses`  ... and how it is made of what was read
* :mod:`tidemark_airflow.web.offset_strips`   a partition as a strip of offsets
* :mod:`tidemark_airflow.web.api`      the routes
* :mod:`tidemark_airflow.web.backfill_reports`  the reports of backfills
* :mod:`tidemark_airflow.web.app`      the application: headers, errors, the page's files
"""
