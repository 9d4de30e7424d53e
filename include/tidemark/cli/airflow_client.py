"""A client for the few calls of Airflow's REST API that the command line needs.

The token never appears on a command line: it comes from a file or the environment, and is sent only in a header.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tidemark.config import http_url
from tidemark.errors import AirflowError, ConfigError

TOKEN: Final = "TIDEMARK_AIRFLOW_TOKEN"  # noqa: S105 - the variable's name
_RULE: Final = "must be a URL such as https://airflow.example.com"
_TIMEOUT: Final = 30.0
_TRIES: Final = 3
_REFUSED: Final = frozenset({400, 401, 403, 404, 409, 422})


class Airflow:
    """Airflow at ``url``, with a user's token."""

    def __init__(self, url: str, token: str) -> None:
        """Check the arguments without a request. Raises ConfigError for an invalid URL or token."""
        try:
            parts = urlsplit(http_url(url))
        except ValueError as error:
            raise ConfigError("--airflow", [("", f"{url!r} {_RULE}")]) from error
        if parts.query or parts.username:
            raise ConfigError("--airflow", [("", f"it {_RULE}, without a user or a query")])
        if not token or not token.isascii() or not token.isprintable():
            rule = "there is no token: set TIDEMARK_AIRFLOW_TOKEN, or name a file with --token-file"
            raise ConfigError("--token-file", [("", rule)])
        self._secure, self._host, self._port = parts.scheme == "https", str(parts.hostname), parts.port
        self._path = parts.path.rstrip("/")
        self._token = token
        self.url = url.rstrip("/")

    def start(self, dag: str, conf: Mapping[str, object]) -> str:
        """Start a run of ``dag`` and return its id. Raises ConfigError if Airflow refuses the conf, or the user."""
        answer = self._call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": dict(conf)})
        return str(answer["dag_run_id"])

    def state(self, dag: str, run: str) -> str:
        """The run's state: ``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._get(f"/api/v2/{_path(dag, run)}")["state"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """The run's task instances."""
        tasks: list[dict[str, Any]] = self._get(f"/api/v2/{_path(dag, run)}/taskInstances?limit=1000")["task_instances"]
        return tasks

    def failures(self, dag: str, run: str) -> Iterator[tuple[str, str]]:
        """(task, error message) of each failed task, from its log."""
        for task in self.tasks(dag, run):
            if task["state"] == "failed":
                place = f"{quote(task['task_id'])}/logs/{task['try_number']}?map_index={task['map_index']}"
                log = self._get(f"/api/v2/{_path(dag, run)}/taskInstances/{place}&full_content=true")["content"]
                named = f" {task['rendered_map_index']}" if task.get("rendered_map_index") else ""
                yield f"{task['task_id']}{named}", _error_in(log)

    def report(self, topic: str, name: str) -> dict[str, Any] | None:
        """The report ``name`` on ``topic`` (cluster/topic), or None."""
        try:
            report: dict[str, Any] = self._get(f"/tidemark/api/reports/{quote(topic)}/{quote(name)}")
        except AirflowError as error:
            if error.status == 404:
                return None
            raise
        return report

    def readers(self, topic: str) -> list[dict[str, str]]:
        """The DAGs and tasks that read the table of ``topic`` (cluster/topic).

        An entry of a DAG that ``asset`` schedules has an empty ``task``; a task's entry names an inlet as ``asset``.
        """
        readers: list[dict[str, str]] = self._get(f"/tidemark/api/topics/{quote(topic)}/readers")["readers"]
        return readers

    def _get(self, path: str) -> Any:
        """The answer to a GET request. Repeats the request a few times if there is no answer."""
        for left in reversed(range(_TRIES)):
            try:
                return self._call("GET", path, None)
            except AirflowError as error:
                if error.status is not None or not left:
                    raise
                time.sleep(1.0)
        raise AssertionError

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT)
        headers = {"Accept": "application/json", "Authorization": f"Bearer {self._token}"}
        try:
            content = None if body is None else json.dumps(body)
            more = {} if content is None else {"Content-Type": "application/json"}
            connection.request(method, f"{self._path}{path}", content, headers | more)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            raise AirflowError(None, f"{self.url}: no answer: {error}") from error
        finally:
            connection.close()
        return _answered(method, f"{self.url}{path}", response.status, answer)


def read_token(file: Path | None) -> str:
    """Airflow's token: from ``file``, else from the environment. Raises ConfigError if the file cannot be read."""
    if file is None:
        return os.environ.get(TOKEN, "").strip()
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), [("--token-file", f"cannot be read: {error}")]) from error


def _answered(method: str, url: str, status: int, answer: bytes) -> Any:
    try:
        parsed = json.loads(answer) if answer else None
    except ValueError as error:
        if status < 400:
            raise AirflowError(status, f"{method} {url}: the answer is not JSON; is this Airflow?") from error
        parsed = None
    if status < 400:
        return parsed
    detail = parsed.get("detail", parsed) if isinstance(parsed, dict) else answer.decode(errors="replace")[:500]
    text = detail if isinstance(detail, str) else json.dumps(detail)
    if method == "POST" and status in _REFUSED:
        raise ConfigError(url, [("", f"Airflow refused ({status}): {text}")])
    raise AirflowError(status, f"{method} {url}: {status}: {text}")


def _path(dag: str, run: str) -> str:
    return f"dags/{quote(dag, safe='')}/dagRuns/{quote(run, safe='')}"


def _error_in(log: Any) -> str:
    """The message of the last error in a task's log."""
    details = [detail for event in log if isinstance(event, dict) for detail in event.get("error_detail") or ()]
    return str(details[-1].get("exc_value", "")) if details else "see its log"
