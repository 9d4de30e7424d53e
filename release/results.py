"""The results of checks, and the programs that checks run."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

_SHOWN = 1500
"""Characters of a failed program's last words that a result shows."""


class CheckOutcome(StrEnum):
    """The outcome of a check. ``noted`` is a fact that no release depends on."""

    passed = "passed"
    failed = "FAILED"
    unchecked = "NOT CHECKED"
    noted = "noted"


class Result(NamedTuple):
    """A line of the report."""

    subject: str
    outcome: CheckOutcome
    detail: str

    def __str__(self) -> str:
        return f"{self.outcome:11}  {self.subject}: {self.detail}"


class CheckFailed(Exception):
    """A rule that the release breaks, or a program that failed; the message is the result's detail."""


class NotChecked(Exception):
    """A check that cannot be made here; the message says why."""


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """The output of ``command``, which also gets the variables ``env``. Raises CheckFailed with its last words."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-_SHOWN:]
        raise CheckFailed(f"{shlex.join(map(str, command))} ended with code {done.returncode}: {words}")
    return done.stdout


def exit_code(results: Iterable[Result]) -> int:
    """The command's exit code: 1 if a check failed, 3 if none did but one could not be made, otherwise 0."""
    outcomes = {result.outcome for result in results}
    if CheckOutcome.failed in outcomes:
        return 1
    return 3 if CheckOutcome.unchecked in outcomes else 0


def totals(results: Iterable[Result]) -> str:
    """The number of results of each outcome, as one line."""
    outcomes = [result.outcome for result in results]
    return ", ".join(f"{outcomes.count(outcome)} {outcome.lower()}" for outcome in CheckOutcome)
