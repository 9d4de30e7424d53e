"""Which servers a test starts, and in which of the suite's tiers it therefore runs.

A test or a fixture that starts a server asks for the fixture of its kind, such as ``starts_kafka``. Every test that
has this fixture among its own, by whatever way, gets the marker of the kind. While a test runs that has not the marker,
this process starts no such server: so none is without.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import pytest

KINDS: Final = {
    "airflow": "Airflow's processes",
    "spark": "Spark: sessions, clusters, Connect, and YARN below it",
    "kafka": "brokers, ZooKeeper and Kafka Connect",
    "browser": "Chromium",
    "other": "catalogs, Azurite, PostgreSQL, and the readers in Java that tests compare with",
    "s3": "an S3 server",
}
"""The kinds of servers, of which each is a marker. What needs most CPU time comes first."""

STARTS: Final = {f"starts_{kind}": kind for kind in KINDS}
"""The fixtures that give a marker."""

TIERS: Final = {
    "check": "needs no server",
    "essential": "needs a server, and shows what no other test of the tier shows",
    "servers": "needs a server",
    "full": "takes long",
}
"""The tiers; each test is in one."""

COLLECTED: Final = pytest.StashKey[list[pytest.Item]]()
"""Where pytest's configuration has all tests that were collected, whatever the run leaves out."""

_AIRFLOWS: Final = {"api-server", "dag-processor", "scheduler", "standalone", "triggerer"}
_SPARKS: Final = {"spark-class", "spark-submit"}
_OTHERS: Final = {"azurite-blob", "initdb", "moto_server", "postgres"}
_OF_JAVA: Final = {
    "kafka": ("kafka.", "org.apache.kafka.", "org.apache.zookeeper."),
    "spark": ("org.apache.spark.", "org.apache.hadoop.yarn."),
    "other": ("py4j.",),
}
"""What the name of a JVM's main class begins with."""

_DRIVES_SPARK: Final = "PYSPARK_DRIVER_PYTHON"
"""What :func:`tests.support.spark.spark_env` gives to drivers."""

_running: pytest.Item | None = None
_guarded = False


def kinds_of(item: pytest.Item) -> set[str]:
    """The kinds of servers that a test may start."""
    return {kind for kind in KINDS if item.get_closest_marker(kind)}


def mark(items: Sequence[pytest.Item]) -> None:
    """Give each test the markers of its fixtures. A fixture's parameter may carry one, if it alone needs the server."""
    for item in items:
        for name in getattr(item, "fixturenames", ()):
            if name in STARTS:
                item.add_marker(STARTS[name])


def check(item: pytest.Item, names: Sequence[str]) -> None:
    """Fail a test that has by now asked for a fixture, such as a server that runs already, without its marker."""
    for kind in sorted({STARTS[name] for name in names if name in STARTS} - kinds_of(item)):
        _refuse(item, kind)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test that has its markers."""
    if item.get_closest_marker("full"):
        return "full"
    if not kinds_of(item):
        return "check"
    return "essential" if item.get_closest_marker("essential") else "servers"


def of_tiers(items: Sequence[pytest.Item], tiers: Sequence[str]) -> list[pytest.Item]:
    """Those of ``items`` that are in one of ``tiers``."""
    return [item for item in items if tier_of(item) in tiers]


def kind_of_program(words: Sequence[str]) -> str | None:
    """The kind of the server that a command starts, if it starts one."""
    path, rest = Path(words[0]), words[1:]
    if path.name == "weed":
        return "s3"
    if path.name in {"chromedriver", "chrome", "chromium"}:
        return "browser"
    if path.name == "airflow":
        return "airflow" if _AIRFLOWS.intersection(word.replace("_", "-") for word in rest) else None
    if path.name in _SPARKS:
        return "spark" if path.parent.parent.name in {"pyspark", "spark"} else None  # tests have stand-ins of their own
    if path.name in _OTHERS:
        return "other"
    if path.name == "java":
        return next((kind for kind, begins in _OF_JAVA.items() if any(word.startswith(begins) for word in rest)), None)
    return None


def guard() -> None:
    """Have this process start no server that the running test has no marker of. It stays so until the process ends."""
    global _guarded  # noqa: PLW0603 - a hook cannot be taken away, and one is enough
    if not _guarded:
        _guarded = True
        sys.addaudithook(_look)


def _starting(kind: str) -> None:
    if _running is not None and not _running.get_closest_marker(kind):
        _refuse(_running, kind)


def _refuse(item: pytest.Item, kind: str) -> NoReturn:
    fixture = next(name for name, of in STARTS.items() if of == kind)
    pytest.fail(
        f"{item.nodeid} uses a server of the kind {kind!r} without its marker. "
        f"Let the test, or its fixture that starts the server, ask for the fixture {fixture!r}."
    )


@contextmanager
def running(item: pytest.Item) -> Iterator[None]:
    """While ``item`` runs, with all that is set up for it."""
    global _running  # noqa: PLW0603 - the hook has no other way to know
    before, _running = _running, item
    try:
        yield
    finally:
        _running = before


def _look(event: str, details: tuple[object, ...]) -> None:
    if event != "subprocess.Popen" or _running is None:
        return
    _, words, _, env = details
    if isinstance(words, list | tuple) and words:
        kind = kind_of_program([os.fsdecode(word) for word in words])
        if kind is None and isinstance(env, Mapping) and _DRIVES_SPARK in env:
            kind = "spark"  # a program that makes its session itself
        if kind is not None:
            _starting(kind)
