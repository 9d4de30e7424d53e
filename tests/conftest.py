"""What all tests share. Loaded in two environments: dev's, and Airflow's, which has little more than pytest."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cpu import CpuMeter
from tests.support.fixtures import (
    FULL,
    SEED,
    answers_are_listed,
    commands_built_once,
    evidence_parsed_once,
    full,
    inner_sessions_apart,
    kafka,
    kafka39,
    models_read_once,
    no_kafka_client_left,
    no_power_cut,
    observed_answers,
    own_buckets,
    quick_retries,
    rng,
    s3,
    s3_server,
    seed,
    servers_are_marked,
    spark_home,
    spark_standalone,
    starts_airflow,
    starts_browser,
    starts_kafka,
    starts_other,
    starts_s3,
    starts_spark,
    tried,
)
from tests.support.groups import group_of
from tests.support.journal import JournalPlugin, of_this_run
from tests.support.orphans import OrphanWatch
from tests.support.paths import roomy_memory
from tests.support.tiers import COLLECTED, KINDS, TIERS, guard, mark, of_tiers, running

__all__ = [
    "answers_are_listed",
    "commands_built_once",
    "evidence_parsed_once",
    "full",
    "inner_sessions_apart",
    "kafka",
    "kafka39",
    "models_read_once",
    "no_kafka_client_left",
    "no_power_cut",
    "observed_answers",
    "own_buckets",
    "quick_retries",
    "rng",
    "s3",
    "s3_server",
    "seed",
    "servers_are_marked",
    "spark_home",
    "spark_standalone",
    "starts_airflow",
    "starts_browser",
    "starts_kafka",
    "starts_other",
    "starts_s3",
    "starts_spark",
    "tried",
]

HAS_AIRFLOW = importlib.util.find_spec("airflow") is not None
# What imports Airflow is tested in Airflow's environment, by `make test`'s second run of pytest.
collect_ignore = [] if HAS_AIRFLOW else ["plugins", "dags"]

if HAS_AIRFLOW and "AIRFLOW_HOME" not in os.environ:
    # The first import of Airflow makes its home; it must not be the user's.
    _home = tempfile.TemporaryDirectory(prefix="tidemark-airflow-")
    os.environ["AIRFLOW_HOME"] = _home.name
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# Tests make many thousands of files: in memory that takes a tenth less of their CPU time, and a third less of waiting.
if (memory := roomy_memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# JVMs of tests live for seconds: what takes long to compile does not pay. Those that name their own options keep them.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


_LONGEST_FIRST = (
    "tests/end_to_end/",
    "tests/uploader_agent/",
    "tests/consumer/",
    "tests/spark/",
)
"""Files with much to wait for, which a process that comes to them last would run while the others are idle."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tiers``, for `make check`, `make test` and `make test-servers`."""
    parser.addoption("--tiers", help=f"run the tests of these tiers only, separated by commas: {', '.join(TIERS)}")


def pytest_configure(config: pytest.Config) -> None:
    """Let a SIGTERM end the session as Ctrl-C does, end what a killed one leaves, and keep a journal if asked to.

    Whoever starts a server without the marker of its kind fails.
    """
    for kind, what in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: starts {what}; fixtures give it, see tests/support/tiers.py")
    guard()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    orphans = OrphanWatch()
    config.add_cleanup(orphans.close)
    if journal := os.environ.get("TIDEMARK_JOURNAL"):
        config.pluginmanager.register(JournalPlugin(Path(journal), of_this_run()))
        config.pluginmanager.register(CpuMeter())


def pytest_report_header() -> str:
    """The seed, so that a failure can be repeated."""
    long = "TIDEMARK_FULL=1" if FULL else "the long tests are deselected; TIDEMARK_FULL=1 runs them"
    return f"tidemark: TIDEMARK_SEED={SEED} {long}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; leave out long tests, and cases that the seed leaves out, unless FULL."""
    items.sort(key=_rank)
    mark(items)
    config.stash[COLLECTED] = list(items)
    _leave_out_other_tiers(config, items)
    if FULL:
        return
    left_out = [item for item in items if item.get_closest_marker("full") or not _drawn(item)]
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and item not in left_out:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        count = found[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]  # it was just found
        chosen = random.Random(f"{SEED}:{name}").sample(range(len(found)), min(count, len(found)))
        left_out += [item for number, item in enumerate(found) if number not in chosen]
    gone = {item.nodeid for item in left_out}
    items[:] = [item for item in items if item.nodeid not in gone]
    config.hook.pytest_deselected(items=left_out)


def _leave_out_other_tiers(config: pytest.Config, items: list[pytest.Item]) -> None:
    named: str | None = config.getoption("--tiers")
    if named is None:
        return
    wanted = named.split(",")
    if unknown := set(wanted) - TIERS.keys():
        raise pytest.UsageError(f"--tiers: no such tier: {', '.join(sorted(unknown))}")
    chosen = of_tiers(items, wanted)
    ours = set(chosen)
    left_out = [item for item in items if item not in ours]
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the test, and what is set up for it, start servers of its kinds only."""
    with running(item):
        return (yield)


def _drawn(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("drawn")
    return marker is None or random.Random(f"{SEED}:{item.nodeid}").random() < marker.args[0]


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Have a process of pytest-xdist count what it leaves out: only the first process writes a summary."""
    output = getattr(items[0].config, "workeroutput", None) if items else None
    if output is not None:
        output["deselected"] = output.get("deselected", 0) + len(items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the count of one of pytest-xdist's processes, which all leave out the same, into the summary."""
    count = getattr(node, "workeroutput", {}).get("deselected", 0)
    reporter: Any = node.config.pluginmanager.get_plugin("terminalreporter")
    if error is None and count and reporter is not None:
        reporter.stats["deselected"] = [SimpleNamespace()] * count


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, path in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(path)), len(_LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out by file, as ``--dist loadfile`` does, but for files that share servers."""
    from xdist.scheduler import LoadFileScheduling

    class ByServers(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or super()._split_scope(nodeid)

    return ByServers(config, log)
