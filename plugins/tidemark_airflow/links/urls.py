"""Addresses of Tidemark's pages, for alerts, tasks and the pages themselves."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf

PREFIX = "/tidemark"
"""Path of the plugin's application, below Airflow's base URL."""


def base_url() -> str:
    """Airflow's address for people (``[api] base_url``), without a slash at the end; empty if it is not set."""
    return conf.get("api", "base_url", fallback="").rstrip("/")


def base_path() -> str:
    """Path of Airflow's address, often empty."""
    return urlsplit(base_url()).path


def continuity_url(cluster: str, topic: str, partition: int | None = None) -> str:
    """The continuity page of a topic, at a partition if given."""
    query = {"topic": f"{cluster}/{topic}"}
    if partition is not None:
        query["partition"] = str(partition)
    return f"{base_url()}{PREFIX}/?{urlencode(query, safe='/')}"


def report_url(cluster: str, topic: str, name: str) -> str:
    """The report of a backfill on a topic, see :func:`tidemark.backfill.request.report_name`."""
    return f"{base_url()}{PREFIX}/reports/{quote(cluster, safe='')}/{quote(topic, safe='')}/{name}"


def backfill_url(cluster: str, topic: str, from_date: str = "", to_date: str = "", mode: str = "") -> str:
    """The backfill form, filled in for a topic; a person checks it and starts the run."""
    query = {"topic": f"{cluster}/{topic}", "backfill": "1", "from_date": from_date, "to_date": to_date, "mode": mode}
    return f"{base_url()}{PREFIX}/?{urlencode({k: v for k, v in query.items() if v}, safe='/')}"
