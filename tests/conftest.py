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


def pytest_configure() -> None:
    """Let a SIGTERM end the session as Ctrl-C does, so that the servers are stopped."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_report_header() -> str:
    """The seed, so that a failure can be repeated."""
    return f"tidemark: TIDEMARK_SEED={SEED}{' TIDEMARK_FULL=1' if FULL else ''}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the long tests unless they are asked for."""
    if FULL:
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="long: `make test-full` runs it"))
