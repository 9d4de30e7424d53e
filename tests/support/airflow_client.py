"""A small client of Airflow's REST API, for tests and the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.waiting import HUNG, wait_until

# What the API answers: JSON whose shape depends on the path.
Json = Any
_FINISHED = frozenset({"success", "failed"})
_REPEATS = 5


class AirflowApiError(RuntimeError):
    """The API refused: method, path, status, and the answer."""

    def __init__(self, method: str, path: str, status: int, answer: str) -> None:
        super().__init__(f"{method} {path}: {status}: {answer[:2000]}")
        self.status = status
        self.is_databases = status == HTTPStatus.INTERNAL_SERVER_ERROR and '"Database error"' in answer


class AirflowClient:
    """Calls as one user, logged in on first use. Paths are below ``/api/v2``: ``get("/dags", limit=10)``."""

    def __init__(self, host: str, port: int, user: str, password: str) -> None:
        """Nothing is sent yet."""
        self._host = host
        self._port = port
        self._login = {"username": user, "password": password}
        self._token: str | None = None

    @property
    def token(self) -> str:
        """The token of the user, who logs in for it."""
        if self._token is None:
            self._token = str(json.loads(self._send("POST", "/auth/token", self._login, {}))["access_token"])
        return self._token

    def get(self, path: str, **query: object) -> Json:
        """GET a path with query parameters."""
        return self._call("GET", path + (f"?{urlencode(query, doseq=True)}" if query else ""), None)

    def post(self, path: str, body: Mapping[str, object]) -> Json:
        """POST a JSON object."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, object]) -> Json:
        """PATCH with a JSON object."""
        return self._call("PATCH", path, body)

    def health(self) -> dict[str, str | None]:
        """State by component, without logging in."""
        answer: dict[str, dict[str, str | None]] = json.loads(self._send("GET", "/api/v2/monitor/health", None, {}))
        return {component: state.get("status") for component, state in answer.items()}

    def import_errors(self) -> dict[str, str]:
        """Stack trace by DAG file."""
        return {error["filename"]: error["stack_trace"] for error in self.get("/importErrors")["import_errors"]}

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until the DAG processor has found a DAG."""

        def found() -> bool:
            return any(dag["dag_id"] == dag_id for dag in self.get("/dags", dag_id_pattern=dag_id)["dags"])

        try:
            wait_until(found, what=f"DAG {dag_id} to be parsed", interval=0.5)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; import errors: {self.import_errors()}") from error

    def pause(self, dag_id: str, *, paused: bool = True) -> None:
        """Pause or unpause a DAG."""
        self.patch(f"/dags/{quote(dag_id, safe='')}", {"is_paused": paused})

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run."""
        self.pause(dag_id, paused=False)

    def trigger(self, dag_id: str, conf: Mapping[str, object] | None = None, **fields: object) -> str:
        """Start a run and return its id; ``fields`` are further ones of the request, such as ``partition_key``."""
        body = {"logical_date": None, "conf": dict(conf or {}), **fields}
        run_id: str = self.post(f"/dags/{quote(dag_id, safe='')}/dagRuns", body)["dag_run_id"]
        return run_id

    def runs(self, dag_id: str) -> list[dict[str, Json]]:
        """The runs of a DAG, newest first."""
        answer = self.get(f"/dags/{quote(dag_id, safe='')}/dagRuns", limit=1000, order_by="-run_after")
        found: list[dict[str, Json]] = answer["dag_runs"]
        return found

    def run(self, dag_id: str, run_id: str) -> dict[str, Json]:
        """One run."""
        found: dict[str, Json] = self.get(_run_path(dag_id, run_id))
        return found

    def wait_for_run(self, dag_id: str, run_id: str) -> str:
        """Wait until a run has ended and return its state, ``success`` or ``failed``."""
        wait_until(
            lambda: self.run(dag_id, run_id)["state"] in _FINISHED,
            what=f"run {run_id} of DAG {dag_id} to end",
            interval=0.5,
        )
        return str(self.run(dag_id, run_id)["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Json]]:
        """The task instances of a run."""
        answer = self.get(f"{_run_path(dag_id, run_id)}/taskInstances", limit=1000)
        found: list[dict[str, Json]] = answer["task_instances"]
        return found

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, attempt: int = 1, map_index: int = -1) -> str:
        """The log of one attempt, an event a line."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id, safe='')}/logs/{attempt}"
        events = self.get(path, map_index=map_index, full_content="true")["content"]
        return "\n".join(event if isinstance(event, str) else json.dumps(event) for event in events)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None, repeats: int = _REPEATS) -> Json:
        """Call again where the database refused, as SQLite does when another was first: Airflow took the call back."""
        try:
            answer = self._send(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self.token}"})
        except AirflowApiError as error:
            if not repeats or not error.is_databases:
                raise
            return self._call(method, path, body, repeats - 1)
        return json.loads(answer) if answer else None

    def _send(self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str]) -> str:
        connection = HTTPConnection(self._host, self._port, timeout=HUNG)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(
                method,
                path,
                content,
                {"Accept": "application/json", "Content-Type": "application/json", **headers},
            )
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        if response.status >= 400:
            raise AirflowApiError(method, path, response.status, answer)
        return answer


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
