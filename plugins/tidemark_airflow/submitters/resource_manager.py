"""YARN's ResourceManager, through its REST API (``/ws/v1/cluster``).

It restarts, and a stand-by redirects to the active one. So while it does not answer, an application counts as running,
for :data:`SILENCE_SECONDS`.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import httpx
from airflow.sdk.exceptions import AirflowException

from tidemark_airflow.submitters.base import JobState

SILENCE_SECONDS: Final = 600.0
_READ_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 1.5  # Airflow gives a killed task 5 in all
_RUNS: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})


class Application(NamedTuple):
    """An application's status in YARN; ``page`` is its tracking URL."""

    id: str
    state: str
    final: str
    diagnostics: str
    page: str
    started: int

    @property
    def job_state(self) -> JobState:
        """The job's state from YARN's two states."""
        if self.state in _RUNS:
            return JobState.RUNS
        return JobState.SUCCEEDED if (self.state, self.final) == ("FINISHED", "SUCCEEDED") else JobState.FAILED

    @property
    def words(self) -> str:
        """YARN's own description."""
        return f"{self.state}: {self.final}: {self.diagnostics}"


class ResourceManager:
    """The REST API at ``address``, as ``user`` if it asks for one (Hadoop's simple authentication)."""

    def __init__(self, address: str, *, user: str = "") -> None:
        self._url = (address if "://" in address else f"http://{address}").rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self._url}/ws/v1/cluster/",
            params={"user.name": user} if user else {},
            headers={"Accept": "application/json"},
            timeout=_READ_SECONDS,
            follow_redirects=True,
        )
        self._answered = time.monotonic()

    def page(self, app_id: str) -> str:
        """Address of its page about an application."""
        return f"{self._url}/cluster/app/{app_id}"

    def tagged(self, tag: str) -> list[Application]:
        """All applications with a tag that it remembers, in the order of submission.

        Raises:
            AirflowException: it does not answer.
        """
        document = self._get("apps", applicationTags=tag)
        listed = (document["apps"] or {}).get("app", []) if document else []
        return sorted(
            (_application(fields) for fields in listed), key=lambda application: (application.started, application.id)
        )

    def application(self, app_id: str) -> Application | None:
        """The application with this id, or None.

        Raises:
            AirflowException: it has not answered for :data:`SILENCE_SECONDS`.
        """
        try:
            document = self._get(f"apps/{app_id}")
        except AirflowException as error:
            if time.monotonic() - self._answered > SILENCE_SECONDS:
                raise
            return Application(app_id, "RUNNING", "UNDEFINED", str(error), "", 0)
        return _application(document["app"]) if document else None

    def kill(self, app_id: str) -> None:
        """Have an application killed. Raises AirflowException if that was not accepted."""
        try:
            answer = self._client.put(f"apps/{app_id}/state", json={"state": "KILLED"}, timeout=_KILL_SECONDS)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise AirflowException(f"application {app_id} was not killed: {error}") from error

    def _get(self, path: str, **query: str) -> dict[str, Any] | None:
        """A document, or None if it does not exist."""
        try:
            # Before it has read its stored state, it answers without knowing any application.
            info = self._client.get("info").raise_for_status().json()
            if info["clusterInfo"]["haState"] == "INITIALIZING":
                raise AirflowException(f"the ResourceManager at {self._url} starts")
            answer = self._client.get(path, params=query)
            document: dict[str, Any] | None = None
            if answer.status_code != httpx.codes.NOT_FOUND:
                document = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise AirflowException(f"the ResourceManager at {self._url} does not answer: {error}") from error
        self._answered = time.monotonic()
        return document


def _application(fields: dict[str, Any]) -> Application:
    return Application(
        id=str(fields["id"]),
        state=str(fields["state"]),
        final=str(fields["finalStatus"]),
        diagnostics=str(fields.get("diagnostics") or "").strip(),
        page=str(fields.get("trackingUrl") or ""),
        started=int(fields.get("startedTime") or 0),
    )
