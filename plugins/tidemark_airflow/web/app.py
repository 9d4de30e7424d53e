"""The application: the page, its files, the API; headers that keep foreign scripts out; readable errors.

Nothing is served without a sign-in, not even the page's own files: such a request is sent to Airflow's login. FastAPI's
own documentation pages are off, since they have no authorization and load their scripts from elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlencode

from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, status
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse

from tidemark.errors import ConfigError, PreconditionFailed, TidemarkError
from tidemark.inspection.gap_acknowledgement import NotAGap
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.links.urls import PREFIX
from tidemark_airflow.web import api, backfill_reports
from tidemark_airflow.web.auth import may
from tidemark_airflow.web.reader import reader

_STATIC: Final = Path(__file__).with_name("static")

_NOT_SIGNED_IN: Final = {status.HTTP_401_UNAUTHORIZED, status.HTTP_403_FORBIDDEN}
"""Airflow's answers without a token, and with an invalid token."""

HEADERS: Final = {
    # Only files of this origin, no inline script or style, and only Airflow itself may frame the page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def page_app() -> FastAPI:
    """The application that Airflow mounts at :data:`tidemark_airflow.links.urls.PREFIX`."""
    signed_in = [Depends(requires_authenticated())]
    app = FastAPI(title="Tidemark", version="1", openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(api.router)
    app.include_router(backfill_reports.router)
    app.get("/", include_in_schema=False, dependencies=signed_in)(index)
    app.get("/static/{name}", include_in_schema=False, dependencies=signed_in)(static)
    app.exception_handler(HTTPException)(to_login)
    app.exception_handler(TidemarkError)(refuse)
    app.middleware("http")(secure)
    return app


def index(request: Request, user: GetUserDep, of_dag: Annotated[str, Query(alias="dag_id")] = "") -> Response:
    """The page, or with ``dag_id`` a redirect to the topic of an ingest DAG."""
    if of_dag:
        topics = [topic for topic in reader().deployment().topics if dag_id(topic) == of_dag]
        query = [f"topic={topic.cluster}/{topic.topic}" for topic in may(user, "GET", topics)]
        return RedirectResponse(f"{request.scope['root_path']}/?{''.join(query)}", status.HTTP_303_SEE_OTHER)
    return FileResponse(_STATIC / "index.html")


async def to_login(request: Request, error: Exception) -> Response:
    """Redirect a page request without a sign-in to Airflow's login, and back; refuse other requests as usual."""
    assert isinstance(error, HTTPException)
    root: str = request.scope["root_path"]
    path: str = request.scope["path"]
    is_page = path == f"{root}/" or path.startswith(f"{root}/reports/")
    if error.status_code in _NOT_SIGNED_IN and is_page:
        query = f"?{request.url.query}" if request.url.query else ""
        login = urlencode({"next": f"{path}{query}"})
        return RedirectResponse(f"{root.removesuffix(PREFIX)}/api/v2/auth/login?{login}", status.HTTP_303_SEE_OTHER)
    return await http_exception_handler(request, error)


@cache
def _files() -> frozenset[str]:
    return frozenset(file.name for file in _STATIC.iterdir())


def static(name: str) -> FileResponse:
    """A file of the page. Names of other files are refused."""
    if name not in _files():
        raise HTTPException(status.HTTP_404_NOT_FOUND, "there is no such file")
    return FileResponse(_STATIC / name)


async def secure(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the headers to every answer. Browsers revalidate files each time, and do not keep data."""
    response = await answer(request)
    response.headers.update(HEADERS)
    response.headers["Cache-Control"] = "no-cache" if "/static/" in request.url.path else "no-store"
    return response


def refuse(_: Request, error: Exception) -> JSONResponse:
    """The answer for one of Tidemark's errors, whose message names the remedy."""
    code = status.HTTP_503_SERVICE_UNAVAILABLE
    if isinstance(error, NotAGap | PreconditionFailed):
        code = status.HTTP_409_CONFLICT
    elif isinstance(error, ConfigError):
        code = status.HTTP_500_INTERNAL_SERVER_ERROR
    return JSONResponse({"detail": str(error)}, code)
