"""Plants mutants in a copy of the tree, and runs the tests there that must see them."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.mutant import Mutant
from tests.support.orphans import MARK
from tests.support.paths import ROOT, STATE
from tests.support.waiting import HUNG

_PARTS: Final = ("include", "spark", "uploader_agent", "plugins", "tests")
_MEMORY: Final = 4 << 30
_CPU_SECONDS: Final = 120
"""Limits of one run of pytest: a mutant may loop, or fill the memory."""

_PATIENCE: Final = HUNG / 4
"""Seconds for which a test in the copy waits: for what a mutant never does it would wait until its pytest is ended."""

_OUTER: Final = {MARK, "PYTEST_XDIST_WORKER", "TIDEMARK_FULL", "TIDEMARK_JOURNAL"}
"""Variables of a session of pytest around this one, which the sessions in the copy must not meet."""

_AIRFLOW: Final = str(STATE / "env/airflow/bin/python")
"""Who runs the tests of Airflow's side."""

_LIGHT: Final = "-p no:anyio -p no:cacheprovider -p no:hypothesispytest -p no:xdist"
"""Without the plugins that take most of the start of pytest."""

_FAILED: Final = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class NotPlantable(Exception):
    """A mutant's text does not occur exactly once in its file: the code has changed, and the mutant must follow."""


class Caught(NamedTuple):
    """The tests that failed, in ``seconds``; none if the mutant survived."""

    tests: tuple[str, ...]
    seconds: float


class Tree:
    """A copy of the product and its tests in ``folder``. The checkout is only read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for part in _PARTS:
            shutil.copytree(ROOT / part, folder / part)  # with bytecode and times, so that little is compiled again
        shutil.copy2(ROOT / "pyproject.toml", folder)
        waiting, limit = folder / "tests/support/waiting.py", f"HUNG = {HUNG}\n"
        text = waiting.read_text()
        assert limit in text
        waiting.write_text(text.replace(limit, f"HUNG = {_PATIENCE}\n"))
        (folder / STATE.name).mkdir()
        (folder / STATE.name / "env").symlink_to(STATE / "env")  # which has the servers
        self._planted = 0

    def caught(self, mutant: Mutant) -> Caught:
        """Plant ``mutant``, and run its tests. Raises NotPlantable, and AssertionError if they could not run."""
        with self._with(mutant):
            return self.run(mutant.tests)

    def run(self, tests: Iterable[str]) -> Caught:
        """The tests that fail in the copy. Raises AssertionError if pytest does not even come to run them."""
        names, started = [*map(nodeid, tests)], time.monotonic()
        of_airflow = [name for name in names if name.startswith("tests/plugins/")]
        others = [name for name in names if name not in of_airflow]
        failed = (*self._failing(sys.executable, others), *self._failing(_AIRFLOW, of_airflow))
        return Caught(failed, time.monotonic() - started)

    def _failing(self, python: str, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        variables = {name: value for name, value in os.environ.items() if name not in _OUTER}
        packages = os.pathsep.join(str(self._folder / name) for name in ("include", "spark", "plugins", "."))
        process = subprocess.Popen(
            [python, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", *names],
            cwd=self._folder,
            env=variables | {"PYTHONPATH": packages, "PYTEST_ADDOPTS": _LIGHT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        try:
            told, _ = process.communicate(timeout=HUNG)
        finally:
            process.kill()
        failed = tuple(_FAILED.findall(told))
        assert process.returncode == (1 if failed else 0), f"pytest ended with {process.returncode}:\n{told}"
        return failed

    @contextmanager
    def _with(self, mutant: Mutant) -> Iterator[None]:
        path = self._folder / mutant.file
        original, status = path.read_text(), path.stat()
        self._planted += 1
        path.write_text(mutated(original, mutant))
        # A time of its own: bytecode is trusted by a source's size and its time in whole seconds.
        os.utime(path, (status.st_atime, int(status.st_mtime) + self._planted))
        try:
            yield
        finally:
            path.write_text(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def mutated(source: str, mutant: Mutant) -> str:
    """``source`` with ``mutant`` planted. Raises NotPlantable."""
    count = source.count(mutant.text)
    if count != 1:
        raise NotPlantable(f"{mutant.file}: has {mutant.text!r} {count} times, and should have it once ({mutant.rule})")
    return source.replace(mutant.text, mutant.replacement)


def nodeid(test: str) -> str:
    """What pytest calls a test that the catalog names by its module."""
    module, *function = test.split("::")
    return "::".join([f"{module.replace('.', '/')}.py", *function])
