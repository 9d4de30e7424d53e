"""The continuity page, which shows people every offset's state. :func:`tidemark_airflow.web.app.page_app` makes it."""
