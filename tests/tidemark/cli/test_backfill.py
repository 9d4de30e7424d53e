"""``tidemark backfill`` against a server that answers as Airflow's REST API does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.tidemark.backfill.test_request import checked
from tests.tidemark.cli.test_cli import call
from tidemark.backfill.preview import Preview
from tidemark.backfill.report import Approval, BackfillReport, Comparison, Differing
from tidemark.timestamps import utc_now

DATES = ("--from", "2026-01-30", "--to", "2026-02-01")
PREVIEW = Preview(
    cluster="east",
    topic="orders",
    table="orders",
    ledger_n=1,
    whole=False,
    dates=(),
    added=(),
    partitions=(),
    tasks=0,
    segments=0,
    bytes=0,
    removes=(),
    columns=(),
    waiting=3,
)
DIFFERENCE = Differing(
    incarnation=0, partition=0, dt="2026-01-30", kind="landed", before=1, after=0, only_before=1, only_after=0
)
COMPARISON = Comparison(
    cluster="east",
    topic="orders",
    table="orders",
    ledger_n=1,
    configuration="",
    code="",
    dates=("2026-01-30",),
    rows=1,
    bytes_read=9,
    differences=(DIFFERENCE,),
)


class Airflow(ThreadingHTTPServer):
    """Answers as a run in the state ``state`` has it; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str | None, Any]] = []
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.state("success")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/af"

    def state(self, state: str, *tasks: tuple[str, str]) -> None:
        """The run's state, and (task, state) of its tasks."""
        run = "/af/api/v2/dags/tidemark_backfill/dagRuns"
        self.answers[run] = {"dag_run_id": "manual__1+x"}
        self.answers[f"{run}/manual__1%2Bx"] = {"state": state}
        instances = [{"task_id": one, "state": is_, "try_number": 1, "map_index": -1} for one, is_ in tasks]
        self.answers[f"{run}/manual__1%2Bx/taskInstances"] = {"task_instances": instances}
        for one, _ in tasks:
            detail = [{"error_detail": [{"exc_value": "to_date: swap them"}]}]
            self.answers[f"{run}/manual__1%2Bx/taskInstances/{one}/logs/1"] = {"content": ["text", *detail]}

    def report(self, found: BackfillReport) -> None:
        self.answers["report"] = json.loads(json.dumps(found.as_json()))


class _Handler(BaseHTTPRequestHandler):
    server: Airflow

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.command, self.path, self.headers["Authorization"], body))
        path = "report" if "/tidemark/api/reports/east/orders/" in self.path else self.path.partition("?")[0]
        found = self.server.answers.get(path, {"detail": "not found"})
        self.send_response(self.server.status if path in self.server.answers else 404)
        self.end_headers()
        self.wfile.write(found if isinstance(found, bytes) else json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    with Airflow() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("TIDEMARK_AIRFLOW_URL", server.url)
        monkeypatch.setenv("TIDEMARK_AIRFLOW_TOKEN", "t0ken\n")
        yield server
        server.shutdown()
        thread.join()


Capture = pytest.CaptureFixture[str]


def test_a_dry_run_is_started_followed_and_shown(airflow: Airflow, capsys: Capture) -> None:
    [request] = checked()
    airflow.report(BackfillReport(request, PREVIEW, None, None, None, None))
    code, output, error = call(capsys, "backfill", "east/orders", *DATES)

    assert (code, error) == (0, f"started {airflow.url}/dags/tidemark_backfill/runs/manual__1+x\n")
    assert "There is nothing of these dates. 3 offsets are uploaded and not landed yet" in output
    assert output.splitlines()[-1] == "manual__1+x: success"
    method, _, token, body = airflow.asked[0]
    assert (method, token) == ("POST", "Bearer t0ken")
    assert body["conf"] == {
        "topics": ["east/orders"],
        "from_date": "2026-01-30",
        "to_date": "2026-02-01",
        "mode": "rebuild",
        "dry_run": True,
        "exchange": "together",
        "extend": False,
        "differences": True,
        "max_gib": 1000,
    }


def test_rows_that_differ_are_an_exit_code(airflow: Airflow, capsys: Capture) -> None:
    [request] = checked(mode="compare", dry_run=False)
    planned = PREVIEW.model_copy(update={"plan": "attempts/1.json", "attempt": 1, "partitions": ()})
    airflow.report(BackfillReport(request, planned, COMPARISON, None, None, None))
    code, output, _ = call(capsys, "backfill", "east/orders", *DATES, "--mode", "compare", "--run", "-o", "json")

    found = json.loads(output)
    assert (code, found["state"]) == (0, "success"), "nothing was compared where there was nothing to do"
    airflow.answers["report"]["state"] = "compared"
    assert call(capsys, "backfill", "east/orders", *DATES, "--mode", "compare", "--run")[0] == 1


def test_a_rejected_run_is_no_success(airflow: Airflow, capsys: Capture) -> None:
    [request] = checked(dry_run=False, reason="x")
    airflow.report(BackfillReport(request, PREVIEW, None, Approval(why="", approved=False, at=utc_now()), None, None))
    airflow.answers["report"]["state"] = "rejected"
    assert call(capsys, "backfill", "east/orders", *DATES, "--run", "--reason", "x")[0] == 1


@pytest.mark.parametrize(("task", "code"), [("validate", 2), ("convert", 1)])
def test_what_failed_is_named(airflow: Airflow, capsys: Capture, task: str, code: int) -> None:
    airflow.state("failed", (task, "failed"), ("result", "upstream_failed"))
    found, _, error = call(capsys, "backfill", "east/orders", *DATES)
    assert (found, error.splitlines()[-1]) == (code, f"{task}: to_date: swap them")


def test_an_approval_is_pointed_at_and_not_waited_for_for_ever(
    airflow: Airflow, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.state("running", ("approve", "awaiting_input"))
    at = iter(range(0, 1000, 100))
    monkeypatch.setattr("tidemark.cli.backfill.time.monotonic", lambda: next(at))
    code, output, error = call(capsys, "backfill", "east/orders", *DATES, "--timeout", "1")
    assert (code, output) == (3, "manual__1+x: waiting for approval\n")
    assert error.splitlines()[-1] == f"waits for approval: {airflow.url}/required_actions"


def test_without_waiting_the_run_is_all_there_is(airflow: Airflow, capsys: Capture) -> None:
    assert call(capsys, "backfill", "east/orders", *DATES, "--no-wait")[:2] == (0, "manual__1+x: started\n")
    assert len(airflow.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_airflow_refuses_is_the_persons_to_mend(airflow: Airflow, capsys: Capture, status: int) -> None:
    airflow.status = status
    airflow.answers["/af/api/v2/dags/tidemark_backfill/dagRuns"] = {"detail": "no such topic"}
    code, _, error = call(capsys, "backfill", "east/orders", *DATES)
    assert (code, f"Airflow refused ({status}): no such topic" in error) == (2, True)


def test_what_is_no_airflow_is_told(airflow: Airflow, capsys: Capture) -> None:
    airflow.answers["/af/api/v2/dags/tidemark_backfill/dagRuns"] = b"<html>"
    code, _, error = call(capsys, "backfill", "east/orders", *DATES)
    assert (code, "the answer is not JSON; is this Airflow?" in error) == (1, True)


def test_a_server_that_does_not_answer_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_AIRFLOW_TOKEN", "t0ken")
    code, _, error = call(capsys, "backfill", "east/orders", *DATES, "--airflow", "http://127.0.0.1:1")
    assert (code, "http://127.0.0.1:1: no answer" in error) == (1, True)


def test_the_token_is_in_a_file_or_the_environment(airflow: Airflow, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert call(capsys, "backfill", "east/orders", *DATES, "--token-file", file)[0] == 2
    file.write_text("fr0m file\n")
    assert call(capsys, "backfill", "east/orders", *DATES, "--token-file", file)[0] == 0
    assert airflow.asked[0][2] == "Bearer fr0m file"
    file.write_text("two\nlines")
    code, _, error = call(capsys, "backfill", "east/orders", *DATES, "--token-file", file)
    assert (code, "there is no token: set TIDEMARK_AIRFLOW_TOKEN" in error) == (2, True)


@pytest.mark.parametrize("url", ["ftp://x", "airflow.example", "https://user:secret@x", "http://x/?a=b"])
def test_a_url_that_is_none_is_refused(airflow: Airflow, capsys: Capture, url: str) -> None:
    code, _, error = call(capsys, "backfill", "east/orders", *DATES, "--airflow", url)
    assert (code, "must be a URL such as https://airflow.example.com" in error) == (2, True)
    assert airflow.asked == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--run",), "reason: is needed for what rewrites a table: say why, or make it a dry run"),
        (("--run", "--reason", "\n"), "reason: is needed"),
        (("--from", "2026-02-02"), "to_date: 2026-02-01 is before from_date, 2026-02-02; swap them"),
        (("--from", "2020-01-01"), "to_date: 2224 days are more than 366"),
        (("--from", "9999-12-30", "--to", "9999-12-31"), "from_date: 9999-12-30 is in the future"),
        (("--mode", "missing", "--extend"), "extend: cannot be with mode missing"),
        (("--mode", "replay", "--exchange", "by-date"), "exchange: can be by-date only in mode rebuild or missing"),
        (("--schema-version", "3"), "schema_version: is for mode schema alone"),
        (("--mode", "schema"), "schema_version: is needed in mode schema"),
        (("--mode", "schema", "--schema-version", "3", "east/clicks"), "topics: must be one in mode schema"),
        (("orders",), "topics: 'orders' must be cluster/topic"),
    ],
)
def test_what_the_form_says_by_itself_is_checked_before_a_run_is_started(
    airflow: Airflow, capsys: Capture, wrong: tuple[str, ...], told: str
) -> None:
    code, output, error = call(capsys, "backfill", "east/orders", *DATES, *wrong)
    assert (code, output) == (2, "")
    assert f"the backfill's form: {told}" in error
    assert airflow.asked == []


@pytest.mark.parametrize("wrong", [("--mode", "erase"), ("--max-gib", "0"), ("--from", "yesterday")])
def test_the_command_line_is_checked_first(airflow: Airflow, capsys: Capture, wrong: tuple[str, str]) -> None:
    assert call(capsys, "backfill", "east/orders", *DATES, *wrong)[0] == 2
    assert airflow.asked == []
