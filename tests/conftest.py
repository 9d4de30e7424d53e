"""What all tests share. Loaded in two environments: dev's, and Airflow's, which has little more than pytest."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile

import pytest

from tests.support.fixtures import (
    FULL,
    SEED,
    full,
    kafka,
    kafka39,
    rng,
    s3_server,
    seed,
    spark_home,
    spark_standalone,
)

__all__ = ["full", "kafka", "kafka39", "rng", "s3_server", "seed", "spark_home", "spark_standalone"]

HAS_AIRFLOW = importlib.util.find_spec("airflow") is not None
# What imports Airflow is tested in Airflow's environment, by `make test`'s second run of pytest.
collect_ignore = [] if HAS_AIRFLOW else ["plugins", "dags"]

if HAS_AIRFLOW and "AIRFLOW_HOME" not in os.environ:
    # The first import of Airflow makes its home; it must not be the user's.
    _home = tempfile.TemporaryDirectory(prefix="tidemark-airflow-")
    os.environ["AIRFLOW_HOME"] = _home.name
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


_LONGEST_FIRST = (
    "tests/end_to_end/",
    "tests/plugins/test_airflow_stack.py",
    "tests/plugins/test_watch_stack.py",
    "tests/plugins/test_page_browser.py",
    "tests/uploader_agent/",
    "tests/spark/",
)
"""Files with much to wait for, which a process that comes to them last would run while the others are idle."""


def pytest_configure() -> None:
    """Let a SIGTERM end the session as Ctrl-C does, so that the servers are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_report_header() -> str:
    """The seed, so that a failure can be repeated."""
    return f"tidemark: TIDEMARK_SEED={SEED}{' TIDEMARK_FULL=1' if FULL else ''}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; skip the long tests unless they are asked for."""
    items.sort(key=_rank)
    if FULL:
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="long: `make test-full` runs it"))


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, path in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(path)), len(_LONGEST_FIRST))
