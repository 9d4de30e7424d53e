"""A journal of tests: a line for each that ended. It names the slowest, sums up, and lets a long run go on.

`make check`, `make test` and `make test-servers` begin an empty one. That of `make test-full` lies in the user's cache.
What passed is not run again as long as nothing has changed that its file depends on (:mod:`tests.support.inputs`), so
that an interrupted run goes on where it stopped.

``python -m tests.support.journal`` prints the totals, and fails while a test is missing or has failed. With
``--budget`` it also fails if the tests needed more CPU time than `make test` may (:data:`BUDGET`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.cpu import COLLECTION, PROPERTY, loop_seconds
from tests.support.inputs import Inputs
from tests.support.paths import cache_dir

TRIED = "tried: "
"""What the names of a test's properties begin with that say how much it has tried, by kind."""

BUDGET = 22_000
"""Loops (:mod:`tests.support.cpu`) of CPU time that the tests of `make test` may need. A fifth more is a failure.

Four machines have measured 13,000 to 24,900 for nearly the same tests: what is slow differs between them. The fourth
runs the loop a third faster than the third one, and the tests no faster.

Lower it whenever tests have become cheaper.
"""

_DONE = {"passed", "skipped"}
_SLOWEST = 10
_ERROR = 4000
"""Characters."""


def full_journal() -> Path:
    """Where the journal of `make test-full` lies for the product as it is now."""
    return cache_dir() / "test-full" / f"{Inputs().shared}.jsonl"


def of_this_run() -> Inputs | None:
    """What the journal of `make test-full` goes by; those of other runs begin empty, and need no repository."""
    return Inputs() if os.environ.get("TIDEMARK_FULL") == "1" else None


@dataclass
class Result:
    """How a test ended: ``outcome`` as pytest names it, the amounts that it tried by kind, and the end of its error."""

    outcome: str = "passed"
    seconds: float = 0.0
    tried: Counter[str] = field(default_factory=Counter)
    error: str = ""
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of CPU time by kind, and those of a loop as ``loop``."""


@dataclass
class Contents:
    """A journal as read: each test's last result by node id, and the node ids that were ever collected."""

    results: dict[str, Result] = field(default_factory=dict)
    collected: set[str] = field(default_factory=set)
    sharing: list[dict[str, float]] = field(default_factory=list)
    """What the processes have needed that share the tests out."""

    @property
    def done(self) -> set[str]:
        """The tests that need not run again."""
        return {nodeid for nodeid, result in self.results.items() if result.outcome in _DONE}


def read(path: Path, inputs: Inputs | None) -> Contents:
    """The journal at ``path``, without what was noted of files whose ``inputs`` were others; empty if there is none.

    Without ``inputs`` it is of one run, and all counts. A last line that was cut off counts for nothing.
    """
    contents = Contents()
    for entry in _entries(path):
        if "collected" in entry:
            contents.collected |= {nodeid for nodeid, of in entry["collected"].items() if of == _of(nodeid, inputs)}
        elif "sharing" in entry:
            contents.sharing.append(entry["sharing"])
        elif entry["inputs"] == _of(entry["test"], inputs):
            contents.results[entry["test"]] = Result(
                entry["outcome"], entry["seconds"], Counter(entry["tried"]), entry["error"], entry.get("cpu", {})
            )
    return contents


def _of(nodeid: str, inputs: Inputs | None) -> str:
    return inputs.digest(nodeid.partition("::")[0]) if inputs else ""


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


class JournalPlugin:
    """Leaves out what the journal at ``path`` says is done, and adds each test that ends."""

    def __init__(self, path: Path, inputs: Inputs | None) -> None:
        self._path = path
        self._inputs = inputs
        self._done = read(path, self._inputs).done
        self._running: dict[str, Result] = {}

    @pytest.hookimpl(trylast=True)  # what this run leaves out was not collected
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what is done; in a process of pytest-xdist, its first process notes what was collected."""
        if not hasattr(config, "workerinput"):
            self._note_collected([item.nodeid for item in items])
        left_out = [item for item in items if item.nodeid in self._done]
        items[:] = [item for item in items if item.nodeid not in self._done]
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Note what a process collected."""
        self._note_collected(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test once its last phase has ended. Processes of pytest-xdist report to the first one."""
        if os.environ.get("PYTEST_XDIST_WORKER"):
            return
        result = self._running.setdefault(report.nodeid, Result())
        result.seconds += report.duration
        if report.outcome != "passed" and result.outcome != "failed":
            result.outcome = report.outcome
            result.error = report.longreprtext[-_ERROR:] if report.failed else ""
        if report.when == "teardown":
            del self._running[report.nodeid]
            for name, amount in report.user_properties:
                if name == PROPERTY and isinstance(amount, dict):
                    result.cpu = amount
                elif name.startswith(TRIED) and isinstance(amount, int | float):
                    result.tried[name.removeprefix(TRIED)] += amount  # type: ignore[assignment]
            self._append(
                {
                    "test": report.nodeid,
                    "inputs": _of(report.nodeid, self._inputs),
                    "outcome": result.outcome,
                    "seconds": round(result.seconds, 3),
                    "tried": result.tried,
                    "cpu": result.cpu,
                    "error": result.error,
                    "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
                }
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note what the first process of pytest-xdist has needed."""
        if hasattr(session.config, "workerinput") or session.config.getoption("dist", "no") == "no":
            return
        self._append({"sharing": {COLLECTION: time.process_time(), "loop": loop_seconds()}})

    def _note_collected(self, nodeids: list[str]) -> None:
        self._append({"collected": {nodeid: _of(nodeid, self._inputs) for nodeid in nodeids}})

    def _append(self, entry: dict[str, Any]) -> None:
        """In one write, since another run of pytest may add to the same journal."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as journal:
            journal.write((json.dumps(entry) + "\n").encode())


def report(contents: Contents) -> str:
    """The slowest tests, the totals by folder, and what the tests have tried by kind."""
    lines = [f"The {_SLOWEST} slowest tests, in seconds, with what they set up:"]
    slowest = sorted(contents.results.items(), key=lambda item: -item[1].seconds)[:_SLOWEST]
    lines += [f"{result.seconds:9.1f}  {nodeid}" for nodeid, result in slowest]
    tried: Counter[str] = Counter()
    by_folder: dict[str, Counter[str]] = defaultdict(Counter)
    for nodeid in contents.collected | contents.results.keys():
        result = contents.results.get(nodeid)
        by_folder[_folder(nodeid)][result.outcome if result else "not run"] += 1
        tried += result.tried if result else Counter()
    columns = ["passed", "skipped", "failed", "not run"]
    rows = [(folder, *(counts[name] for name in columns)) for folder, counts in sorted(by_folder.items())]
    rows.append(("all", *(sum(counts[name] for counts in by_folder.values()) for name in columns)))
    lines += ["", f"{'tests':32}" + "".join(f"{name:>10}" for name in columns)]
    lines += [f"{name:32}" + "".join(f"{count:>10,}" for count in counts) for name, *counts in rows]
    if tried:
        lines += ["", "tried, by kind"] + [f"{amount:>16,}  {kind}" for kind, amount in sorted(tried.items())]
    return "\n".join(lines)


@dataclass
class Spent:
    """The CPU time that a run has needed, in seconds and in loops, by kind, by folder and by test."""

    seconds: Counter[str]
    loops: Counter[str]
    folders: Counter[str]
    tests: Counter[str]

    @property
    def total(self) -> float:
        """In loops."""
        return sum(self.loops.values())


def spent(contents: Contents) -> Spent:
    """What the tests of a journal have needed. The search for tests belongs to no folder."""
    found = Spent(Counter(), Counter(), Counter(), Counter())
    for nodeid, cost in [
        *((nodeid, result.cpu) for nodeid, result in contents.results.items()),
        *(("", one) for one in contents.sharing),
    ]:
        loop = cost.get("loop", 0.0)
        for kind, seconds in cost.items():
            if kind != "loop" and loop:
                found.seconds[kind] += seconds  # type: ignore[assignment]  # counters count seconds as well
                found.loops[kind] += seconds / loop  # type: ignore[assignment]
                if kind != COLLECTION:
                    found.folders[_folder(nodeid)] += seconds / loop  # type: ignore[assignment]
                    found.tests[nodeid] += seconds / loop  # type: ignore[assignment]
    return found


def costs(found: Spent) -> str:
    """CPU time by kind and by folder."""
    seconds = sum(found.seconds.values())
    if not found.total:
        return ""
    lines = [f"CPU time: {seconds:,.0f} s, which are {found.total:,.0f} loops of {1000 * seconds / found.total:.0f} ms"]
    lines += [f"{'by kind':32}{'seconds':>10}{'loops':>10}"]
    lines += [f"{kind:32}{found.seconds[kind]:>10,.0f}{loops:>10,.0f}" for kind, loops in found.loops.most_common()]
    lines += [f"{'by folder':32}{'':>10}{'loops':>10}"]
    lines += [f"{folder:32}{'':>10}{loops:>10,.0f}" for folder, loops in found.folders.most_common()]
    lines += ["the most expensive tests, in loops:", *_most(found, _SLOWEST)]
    return "\n".join(lines)


def over_budget(found: Spent, budget: float = BUDGET) -> str:
    """What to do if a run has needed a fifth more than the budget; nothing if it has not."""
    if found.total <= 1.2 * budget:
        return ""
    told = (
        f"The tests needed {found.total:,.0f} loops of CPU time, where `make test` may need {budget:,.0f}. "
        "Make tests cheaper, or move some to `make test-servers` by taking away their mark `essential`. "
        "The most expensive, in loops:"
    )
    return "\n".join([told, *_most(found, 3 * _SLOWEST)])


def _most(found: Spent, count: int) -> list[str]:
    return [f"{loops:9,.0f}  {nodeid}" for nodeid, loops in found.tests.most_common(count)]


def _folder(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")[1:-1]
    return "/".join(parts[:2]) or "support"


def main(arguments: list[str]) -> int:
    """Print where the journal of `make test-full` lies (``--path``), or the totals of the journal that is named."""
    if arguments == ["--path"]:
        sys.stdout.write(f"{full_journal()}\n")
        return 0
    *options, path = arguments
    contents = read(Path(path), of_this_run())
    found = spent(contents)
    too_much = over_budget(found) if "--budget" in options else ""
    sys.stdout.write("\n\n".join(filter(None, (report(contents), costs(found), too_much))) + "\n")
    failed = sorted(nodeid for nodeid in contents.collected | contents.results.keys() if nodeid not in contents.done)
    for nodeid in failed:
        result = contents.results.get(nodeid)
        sys.stdout.write(f"{result.outcome if result else 'not run'}: {nodeid}\n")
        if result and result.error:
            sys.stdout.write(f"{result.error}\n\n")
    return 1 if failed or too_much or not contents.results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
