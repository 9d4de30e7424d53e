"""The command behind ``make release-check``: all checks, and the release in ``dist``.

Exit codes: 0 all passed; 1 a check failed; 3 none failed, but one could not be made here.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from release import distributions, installations, licences, materials, tree, vulnerabilities
from release.results import CheckFailed, CheckOutcome, NotChecked, Result, exit_code, totals
from release.version import ROOT
from release.workspace import EXTRAS, Workspace

_CHECKS: tuple[tuple[str, Callable[[Workspace], Iterator[Result]]], ...] = (
    ("tree", tree.checked),
    ("distributions", distributions.checked),
    ("installations", installations.checked),
    ("next Python", installations.next_python),
    ("bill of materials", materials.checked),
    ("licences", licences.checked),
    ("vulnerabilities", vulnerabilities.checked),
)


def main(sources: list[str]) -> int:
    """Make all checks, also after one has failed; returns the exit code. ``sources`` are packages without wheels."""
    state = ROOT / ".tidemark"
    folders = state / "release", ROOT / "dist", state / "env" / "build", Path(sys.executable).parent
    space = Workspace(ROOT, *folders, tuple(sources))
    for folder in (space.work, space.dist):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for extra in EXTRAS:
        shutil.copyfile(space.pins(extra), space.dist / f"requirements-{extra}.txt")
    started, results = time.monotonic(), list[Result]()
    for name, check in _CHECKS:
        for result in _results(name, check, space):
            results.append(result)
            print(result, flush=True)  # noqa: T201
    print(f"{totals(results)}, in {time.monotonic() - started:.0f} s")  # noqa: T201
    return exit_code(results)


def _results(name: str, check: Callable[[Workspace], Iterator[Result]], space: Workspace) -> Iterator[Result]:
    try:
        yield from check(space)
    except CheckFailed as failure:
        yield Result(name, CheckOutcome.failed, str(failure))
    except NotChecked as reason:
        yield Result(name, CheckOutcome.unchecked, str(reason))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
