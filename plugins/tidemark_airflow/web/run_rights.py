"""Rights to start, repeat, end and approve a backfill, topic by topic, checked before Airflow acts on the request.

Airflow's own rights end at the DAG, and one DAG backfills all topics. This middleware reads requests to Airflow's API
that change something, and checks rights to the ingest DAGs of their topics, like the page:

==================================  =================================================================================
request                             needs, beside Airflow's own rights
==================================  =================================================================================
a dry run or a comparison           to see each topic of the form (GET on its ingest DAG)
a run that rewrites                 to edit each topic of the form (PUT on its ingest DAG)
any change of an existing run       the rights for that run's form
the answer to an approval           these rights, and to be another user than the one who started the run
anything else that names the DAG    to edit every topic
==================================  =================================================================================

Forms name only the topics that a person may see. Requests without a sign-in are left to Airflow, which refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import HTTPException, status
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.backfill.request import DEFAULTS
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow.dag_factories.backfill import DAG_ID
from tidemark_airflow.web.auth import may
from tidemark_airflow.web.reader import reader

_API: Final = "/api/v2/"
_FORBIDDEN: Final = status.HTTP_403_FORBIDDEN
_READS: Final = {"GET", "HEAD", "OPTIONS"}
_RUN: Final = re.compile(rf"dags/{DAG_ID}/dagRuns/(?P<run>[^/]+)(?P<rest>/.*)?")
_FORM: Final = re.compile(r"dags/(tidemark_\w+)(/details)?")


class _Asked(NamedTuple):
    """The subject of a request: the topics by label, and its effect on them."""

    topics: tuple[str, ...]
    rewrites: bool
    by: str = ""
    approves: bool = False


class RunRights:
    """An ASGI middleware of Airflow's API server; see the module's table."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, refuse it with 403 and the reason, or remove hidden topics from the answer."""
        path = _path(scope)
        if path is None:
            await self._app(scope, receive, send)
        elif scope["method"] in _READS:
            hides = scope["method"] == "GET" and _FORM.fullmatch(path)
            await self._app(scope, receive, _FormFilter(scope, receive, send) if hides else send)
        else:
            request = Request(scope, receive)
            body = await request.body()
            refusal = await _refusal(request, path, body)
            if refusal:
                await JSONResponse({"detail": refusal.detail}, refusal.status_code)(scope, receive, send)
            else:
                await self._app(scope, _replay(body, receive), send)


def _path(scope: Scope) -> str | None:
    """The path below Airflow's API, or None for another path."""
    if scope["type"] != "http":
        return None
    path = str(scope["path"]).removeprefix(scope.get("root_path") or "")
    return path.removeprefix(_API) if path.startswith(_API) else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receiver that returns ``body`` once more, and then the messages of ``receive``."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


async def _user(request: Request) -> Any | None:
    """The sender of ``request``, or None without a sign-in."""
    try:
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException:
        return None


async def _refusal(request: Request, path: str, body: bytes) -> HTTPException | None:
    """The reason to refuse the request, or None."""
    try:
        content = json.loads(body or b"null")
    except (ValueError, RecursionError):
        content = None  # Airflow refuses it as well
    if DAG_ID not in path and DAG_ID not in _strings(content):
        return None
    user = await _user(request)
    return await run_in_threadpool(_judge, user, request.method, path, content) if user else None


def _judge(user: Any, method: str, path: str, content: Any) -> HTTPException | None:
    deployment = reader().deployment()
    subject = _asked(deployment, method, path, content)
    if not subject.topics:
        # Airflow's own refusal would show the schema, and with it the names of all topics.
        return HTTPException(status.HTTP_400_BAD_REQUEST, "topics: choose at least one, each as cluster/topic")
    if subject.approves and subject.by == user.get_name():
        return HTTPException(
            status.HTTP_403_FORBIDDEN, f"{subject.by} started this backfill: somebody else has to answer"
        )
    known = {f"{topic.cluster}/{topic.topic}": topic for topic in deployment.topics}
    wanted = [known[label] for label in subject.topics if label in known]
    seen, edited = may(user, "GET", wanted), may(user, "PUT", wanted) if subject.rewrites else wanted
    if hidden := sorted({*subject.topics} - _labels(seen)):
        return HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"topics: {', '.join(hidden)}: not in the topics file, or you may not see the ingest DAG",
        )
    if refused := sorted(_labels(seen) - _labels(edited)):
        rule = "to rewrite a table needs the right to edit its ingest DAG; a dry run needs none"
        return HTTPException(_FORBIDDEN, f"topics: {', '.join(refused)}: {rule}")
    return None


def _asked(deployment: Deployment, method: str, path: str, content: Any) -> _Asked:
    if method == "POST" and path == f"dags/{DAG_ID}/dagRuns":
        return _of_form(content.get("conf") if isinstance(content, Mapping) else None)
    if found := _RUN.fullmatch(path):
        with create_session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.run_id == unquote(found["run"])))
            subject = _of_form(run.conf if run else None)
            by = (run.triggering_user_name or "") if run else ""
        if run is None:
            return _all_of(deployment)
        return subject._replace(by=by, approves=(found["rest"] or "").endswith("/hitlDetails"))
    return _all_of(deployment)


def _all_of(deployment: Deployment) -> _Asked:
    return _Asked(tuple(sorted(_labels(deployment.topics))), rewrites=True)


def _of_form(form: Any) -> _Asked:
    """The topics of a form: empty unless they are a list of texts. The DAG itself checks the other fields."""
    given = {**DEFAULTS, **(form if isinstance(form, Mapping) else {})}
    topics = given.get("topics")
    named = topics if isinstance(topics, list) and all(isinstance(label, str) for label in topics) else []
    return _Asked(tuple(named), rewrites=given["dry_run"] is not True and given["mode"] != "compare")


def _labels(topics: Iterable[TopicSettings]) -> set[str]:
    return {f"{topic.cluster}/{topic.topic}" for topic in topics}


def _strings(content: Any) -> Iterator[str]:
    """All names and texts of a JSON document."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield str(name)
            yield from _strings(value)
    elif isinstance(content, list):
        for value in content:
            yield from _strings(value)


class _FormFilter:
    """Sends a DAG's details without the topics that the person may not see."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        assert self._start is not None
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        body = await self._filtered() if self._start["status"] == status.HTTP_200_OK else self._body
        response = Response(body, self._start["status"])
        response.raw_headers = [*headers, (b"content-length", str(len(body)).encode())]
        await response(self._scope, self._receive, self._send)

    async def _filtered(self) -> bytes:
        user = await _user(Request(self._scope, self._receive))
        details = json.loads(self._body)
        hidden = await run_in_threadpool(_hidden, user)
        if not hidden or not isinstance(details, dict):
            return self._body
        details["params"] = _without(details.get("params"), hidden)
        return json.dumps(details).encode()


def _hidden(user: Any) -> set[str]:
    topics = reader().deployment().topics
    return _labels(topics) - (_labels(may(user, "GET", topics)) if user else set())


def _without(content: Any, hidden: set[str]) -> Any:
    if isinstance(content, dict):
        return {name: _without(value, hidden) for name, value in content.items()}
    if isinstance(content, list):
        return [_without(value, hidden) for value in content if not (isinstance(value, str) and value in hidden)]
    return content
