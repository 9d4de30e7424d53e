"""The page of the code explains how to add to Airflow's side: its steps are enough, and none can be left out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from typing_extensions import override

from tests.plugins import test_provider
from tests.plugins.submitters import test_platforms
from tests.plugins.submitters.platform_server import JOB, Kept, run, use
from tests.support.how_to_add import Place, Step, follow
from tidemark_airflow import configuration
from tidemark_airflow.options import Option
from tidemark_airflow.submitters import choice
from tidemark_airflow.submitters.base import JobState, JobStatus, RemoteSubmitter, SparkJob


class StubPlatform(RemoteSubmitter):
    """A platform on which each job has succeeded at once."""

    @override
    def submit(self, job: SparkJob) -> str:
        return job.name

    @override
    def status(self, job_id: str) -> JobStatus:
        return JobStatus(JobState.SUCCEEDED, "done")

    @override
    def cancel(self, job_id: str) -> None:
        raise AssertionError(f"{job_id} has ended")

    @override
    def link(self, job_id: str) -> str:
        return f"https://stub/{job_id}"


def test_a_platform_that_runs_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_CONN_ID", "platform")
    use(monkeypatch, tmp_path, {}, conn_type="stub")

    def write_class(place: Place) -> None:
        module = ModuleType("tidemark_airflow.submitters.stub")
        place.patch.setitem(sys.modules, module.__name__, module)
        place.patch.setattr(module, "StubPlatform", StubPlatform, raising=False)

    def check(place: Place) -> None:
        place.patch.setattr(test_platforms, "ROOT", place.root)
        test_platforms.test_each_type_of_connection_has_a_row_on_the_page()
        kept = Kept()
        assert run(kept) == f"https://stub/{JOB.name}"
        assert kept.written == [JOB.name, None]

    def add_row(text: str) -> str:
        return text.replace("| `databricks` | a", "| `stub` | | |\n| `databricks` | a")

    kind = choice._Kind("stub", "StubPlatform")
    steps = [
        Step("a class that fulfils `RemoteSubmitter`", write_class),
        Step("its line in `_KINDS`", lambda at: at.patch.setitem(choice._KINDS, ("stub", ""), kind)),
        Step("a row in `docs/airflow.md`", lambda at: at.edit("airflow.md", add_row)),
    ]
    follow("A platform that runs jobs", steps, check, tmp_path)


def test_an_option(tmp_path: Path) -> None:
    option = Option("stub", "A stub.", "7")

    def list_it(place: Place) -> None:
        place.patch.setitem(test_provider.OPTIONS, option.name, option)
        place.patch.setitem(configuration._DEFAULTS, option.name, option.default or "")

    def check(place: Place) -> None:
        place.patch.setattr(test_provider, "ROOT", place.root)
        test_provider.test_the_page_lists_every_option_with_its_default()
        assert configuration.number("stub") == 7.0

    def add_row(text: str) -> str:
        before, last, after = text.partition("| `approvers` |")
        rest, end, others = after.partition("\n")
        return f"{before}{last}{rest}{end}| `stub` | `7` | a stub |{end}{others}"

    steps = [
        Step("a line in `plugins/tidemark_airflow/options.py`", list_it),
        Step("a row in the [table of options]", lambda at: at.edit("airflow.md", add_row)),
    ]
    follow("An option of Airflow's side", steps, check, tmp_path)
