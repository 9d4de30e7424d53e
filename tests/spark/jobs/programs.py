"""A process that runs programs one after the other, which share its session of Spark, as it starts once only.

``python -m tests.spark.jobs.programs`` reads lines of JSON, ``[module:function, arguments]``, calls the function with
these arguments, and answers each with a line of JSON: the exit code, and what was written to stdout and to stderr.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from tests.support.paths import ROOT


class Done(NamedTuple):
    """What became of a program."""

    code: int
    output: str
    errors: str


class Programs:
    """The process, whose own output goes to ``log``; usable with ``with``."""

    def __init__(self, python: Path, env: Mapping[str, str], log: Path) -> None:
        """Nothing is started yet. ``env`` is the whole environment of ``python``, but for the path to the tests."""
        self._python, self._env, self._log = python, {**env, "PYTHONPATH": str(ROOT)}, log
        self._process: subprocess.Popen[str] | None = None

    def job(self, name: str, arguments: Sequence[str]) -> Done:
        """The job ``name``, in its turn."""
        return self._done("tidemark_spark.jobs.running:run_job", name, [*arguments])

    def run(self, module: str, *arguments: Any) -> Done:
        """The ``main`` of ``module`` with ``arguments``, in its turn."""
        return self._done(f"{module}:main", *arguments)

    def _done(self, function: str, *arguments: Any) -> Done:
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("it was never started")
        self._process.stdin.write(f"{json.dumps([function, arguments])}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of programs has ended\n{self._log.read_text()[-2000:]}")
        return Done(*json.loads(answer))

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(self._python), "-m", "tests.spark.jobs.programs"],
                env=self._env,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate(timeout=60)  # which ends its input, and so the process


def main() -> None:
    """Answer until the input ends. Whatever else writes to stdout, as a JVM may, writes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        _answer(answers, *json.loads(line))


def _answer(answers: IO[str], function: str, arguments: list[Any]) -> None:
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            module, _, name = function.partition(":")
            code = getattr(importlib.import_module(module), name)(*arguments) or 0
        except Exception:  # noqa: BLE001 - the test is told of any
            traceback.print_exc()
            code = 1
    answers.write(f"{json.dumps([code, output.getvalue(), errors.getvalue()])}\n")
    answers.flush()


if __name__ == "__main__":
    main()
