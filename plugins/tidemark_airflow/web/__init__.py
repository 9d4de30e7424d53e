"""The continuity page, which shows people every offset's state. :func:`tidemark_airflow.web.app.page_app` makes it.

* :mod:`tidemark_airflow.web.auth`   rights to see and change topics, from Airflow's own authorization
* :mod:`tidemark_airflow.web.reader`  the API's data, kept for seconds
* :mod:`tidemark_airflow.web.packed_indexes`  the brokers' watermark indexes, kept packed
* :mod:`tidemark_airflow.web.models`   the API's requests and answers
* :mod:`tidemark_airflow.web.responses`  makes the answers from the data
* :mod:`tidemark_airflow.web.offset_strips`   a partition as a strip of offsets
* :mod:`tidemark_airflow.web.api`      the routes
* :mod:`tidemark_airflow.web.backfill_reports`  the reports of backfills
* :mod:`tidemark_airflow.web.app`      the application: headers, errors, the page's files
"""
