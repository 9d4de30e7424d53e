"""A platform that runs jobs, as a server of the test: it shows what is sent, and answers what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typing_extensions import override

from tests.support.receivers import Serving
from tidemark_airflow.submitters.base import (
    JobState,
    JobStatus,
    KeptId,
    RemoteSubmitter,
    SparkJob,
    Submitter,
    check_ended,
)
from tidemark_airflow.submitters.choice import submitter
from tidemark_airflow.submitters.waiting import JobEnded, JobTrigger

TOKEN = "0123456789abcdef" * 4
TASK = "dag/run/task/-1"
JOB = SparkJob("run_plan.py", ("--topics", "/here/topics.yaml", "--cluster", "east"), "tidemark-orders", TOKEN, TASK)
THERE = ["--topics", "/there/topics.yaml", "--cluster", "east"]


class Kept(KeptId):
    """What Airflow's state of a task keeps."""

    def __init__(self, job_id: str | None = None) -> None:
        self.job_id = job_id
        self.written: list[str | None] = []

    @override
    def read(self) -> str | None:
        return self.job_id

    @override
    def write(self, job_id: str | None) -> None:
        self.job_id = job_id
        self.written.append(job_id)


class Request(NamedTuple):
    """What the server was asked."""

    method: str
    path: str
    body: Any
    authorization: str


class Platform(Serving):
    """A server with an API of JSON; ``answer`` says with which status and document it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.answer: Callable[[Request], tuple[int, Any]] = lambda _: (404, {})
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                text = json.loads(body) if body else None
                asked = Request(self.command, self.path, text, self.headers.get("Authorization", ""))
                platform.requests.append(asked)
                status, document = platform.answer(asked)
                answer = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                """Tests show what they need themselves."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.port}"

    def sent(self, method: str) -> list[Request]:
        return [one for one in self.requests if one.method == method]


def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: dict[str, Any], **connection: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PLATFORM", json.dumps(connection))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(template))


def run(kept: Kept, job: SparkJob = JOB) -> str:
    """Run the job to its end as a task does; the address of its page."""
    with submitter(job.program, {}) as made:
        return to_its_end(made, job, kept)


def to_its_end(made: Submitter, job: SparkJob, kept: Kept) -> str:
    """The same with this submitter; the triggerer is this process."""
    job_id = made.run(job, kept)
    if job_id is None:
        return made.page
    assert isinstance(made, RemoteSubmitter)
    event = ended(stored(JobTrigger.of(made, job_id, None)))
    check_ended(job.program, job_id, JobStatus(JobState(event["state"]), event["words"]), kept)
    return event["page"] or made.page


def waiting_for(job: SparkJob, limit: timedelta | None = None) -> JobTrigger:
    """The trigger of a task that has started ``job``."""
    with submitter(job.program, {}) as made:
        job_id = made.run(job, Kept())
        assert isinstance(made, RemoteSubmitter)
        assert job_id is not None
        return stored(JobTrigger.of(made, job_id, limit))


def stored(trigger: JobTrigger) -> JobTrigger:
    """``trigger`` as the triggerer makes it from Airflow's database."""
    path, arguments = trigger.serialize()
    assert path == "tidemark_airflow.submitters.waiting.JobTrigger"
    return JobTrigger(**json.loads(json.dumps(arguments)))


def ended(trigger: JobTrigger) -> JobEnded:
    """The only event of ``trigger``."""

    async def events() -> list[JobEnded]:
        return [event.payload async for event in trigger.run()]

    [event] = asyncio.run(events())
    return event
