"""YARN's ResourceManager, by its REST API (``/ws/v1/cluster``).

It restarts, and a stand-by one redirects to the active one. So while it does not answer, an application counts as one
that runs, for :data:`SILENCE_SECONDS`.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import httpx
from airflow.sdk.exceptions import AirflowException

from tidemark_airflow.submitters.base import JobState

SILENCE_SECONDS: Final = 600.0
_READ_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 1.5  # Airflow gives a task that it kills 5 in all
_RUNS: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})


class Application(NamedTuple):
    """What YARN says of an application; ``page`` is its tracking URL."""

    id: str
    state: str
    final: str
    diagnostics: str
    page: str
    started: int

    @property
    def job_state(self) -> JobState:
        """YARN's two states as one."""
        if self.state in _RUNS:
            return JobState.RUNS
        return JobState.SUCCEEDED if (self.state, self.final) == ("FINISHED", "SUCCEEDED") else JobState.FAILED

    @property
    def words(self) -> str:
        """YARN's own."""
        return f"{self.state}: {self.final}: {self.diagnostics}"


class ResourceManager:
    """The REST API at ``address``, as ``user`` where it asks for one (Hadoop's simple authentication)."""

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
        """Its page about an application."""
        return f"{self._url}/cluster/app/{app_id}"

    def tagged(self, tag: str) -> list[Application]:
        """All applications with a tag that it remembers, the first submitted first.

        Raises:
            AirflowException: it does not answer.
        """
        found = self._get("apps", applicationTags=tag)
        listed = (found["apps"] or {}).get("app", []) if found else []
        return sorted((_application(one) for one in listed), key=lambda one: (one.started, one.id))

    def application(self, app_id: str) -> Application | None:
        """An application; None if there is none of this id.

        Raises:
            AirflowException: it has not answered for :data:`SILENCE_SECONDS`.
        """
        try:
            found = self._get(f"apps/{app_id}")
        except AirflowException as error:
            if time.monotonic() - self._answered > SILENCE_SECONDS:
                raise
            return Application(app_id, "RUNNING", "UNDEFINED", str(error), "", 0)
        return _application(found["app"]) if found else None

    def kill(self, app_id: str) -> None:
        """Have an application killed. Raises AirflowException if that was not accepted."""
        try:
            answer = self._client.put(f"apps/{app_id}/state", json={"state": "KILLED"}, timeout=_KILL_SECONDS)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise AirflowException(f"application {app_id} was not killed: {error}") from error

    def _get(self, path: str, **query: str) -> dict[str, Any] | None:
        """A document; None if there is none."""
        try:
            # Until it has read the state that it kept, it knows no applications, but answers already.
            info = self._client.get("info").raise_for_status().json()
            if info["clusterInfo"]["haState"] == "INITIALIZING":
                raise AirflowException(f"the ResourceManager at {self._url} starts")
            answer = self._client.get(path, params=query)
            found: dict[str, Any] | None = None
            if answer.status_code != httpx.codes.NOT_FOUND:
                found = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise AirflowException(f"the ResourceManager at {self._url} does not answer: {error}") from error
        self._answered = time.monotonic()
        return found


def _application(found: dict[str, Any]) -> Application:
    return Application(
        id=str(found["id"]),
        state=str(found["state"]),
        final=str(found["finalStatus"]),
        diagnostics=str(found.get("diagnostics") or "").strip(),
        page=str(found.get("trackingUrl") or ""),
        started=int(found.get("startedTime") or 0),
    )
