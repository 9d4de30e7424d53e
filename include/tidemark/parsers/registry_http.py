"""HTTP to a schema registry: authentication by variables or an Airflow connection, a private CA, no redirects.

Secrets come from the environment of the process, or from the Airflow connection that the settings name. They are sent
only in the header of a request to the host of ``registry.url``: redirects are not followed, and errors name variables
and connections and never their content.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from typing import Any, Final, NamedTuple

import urllib3

from tidemark.connections import connection
from tidemark.errors import ConfigError
from tidemark.parsers.settings import Registry

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 10.0
"""The longest wait for a byte."""

DEADLINE_SECONDS: Final = 30.0
"""The longest wait for a whole answer."""

BRIEF_SECONDS: Final = 3.0
"""The limit of each wait if a person waits and can do without an answer."""

_MAX_BYTES: Final = 8 << 20
"""The most bytes of an answer: JSON may spell each character of a schema in six."""

_CHUNK: Final = 1 << 16


class HttpAnswer(NamedTuple):
    """A status, and the object in the body; None if there was none, or one too large."""

    status: int
    document: dict[str, Any] | None


class RegistryHttp:
    """Connections to a registry, kept open. Threads may share them."""

    def __init__(self, settings: Registry, connections: int, *, brief: bool = False) -> None:
        self._settings = settings
        self._deadline = BRIEF_SECONDS if brief else DEADLINE_SECONDS
        self._url = settings.url.rstrip("/")
        options: dict[str, Any] = {}
        if self._url.startswith("https:"):
            authorities = settings.ca_file.data.decode() if settings.ca_file else None
            options["ssl_context"] = ssl.create_default_context(cadata=authorities)
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            block=True,
            retries=False,
            timeout=urllib3.Timeout(
                connect=BRIEF_SECONDS if brief else CONNECT_SECONDS, read=BRIEF_SECONDS if brief else READ_SECONDS
            ),
            **options,
        )

    def get(self, path: str) -> HttpAnswer:
        """Send one request, and return the answer.

        Raises:
            ConfigError: a secret is missing, or the certificate is not trusted.
            OSError, ValueError: there was no whole answer.
        """
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "User-Agent": "tidemark"}
        headers |= self._authorization()
        try:
            answer = self._pool.request(
                "GET", f"{self._url}{path}", headers=headers, redirect=False, preload_content=False
            )
            try:
                body = _body(answer, self._deadline)
            finally:
                answer.release_conn()
        except urllib3.exceptions.SSLError as error:
            if error.args and isinstance(error.args[0], ssl.SSLCertVerificationError):
                raise self._error("ca_file", f"the registry's certificate is not trusted: {error.args[0]}") from error
            raise OSError(str(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise OSError(str(error)) from error
        return HttpAnswer(answer.status, _document(answer.status, body))

    def denied(self, status: int) -> ConfigError:
        """The error for an answer that denies access."""
        if (named := self._settings.connection) is not None:
            return self._error("connection", f"the registry answers {status} to what {named} holds; correct it")
        auth = self._settings.auth
        if auth == "none":
            return self._error("auth", f"the registry answers {status}: set auth to basic or bearer")
        names = " and ".join(self._variables())
        return self._error("auth", f"the registry answers {status} to what {names} hold; correct them, or their rights")

    def no_registry(self, path: str, status: int) -> ConfigError:
        """The error for an answer that no registry gives."""
        if 300 <= status < 400:
            return self._error("url", f"{path} is answered by a redirect ({status}); set the URL that it leads to")
        return self._error("url", f"{path} is answered by {status} without an error code, as no registry answers")

    def _error(self, field: str, rule: str) -> ConfigError:
        return ConfigError(self._url, [(f"parser.registry.{field}", rule)])

    def _variables(self) -> tuple[str, ...]:
        kinds = {"basic": ("USER", "PASSWORD"), "bearer": ("TOKEN",)}
        return tuple(f"{self._settings.variables}_{suffix}" for suffix in kinds[self._settings.auth])

    def _authorization(self) -> dict[str, str]:
        if self._settings.connection is not None:
            return self._of_connection(self._settings.connection)
        if self._settings.auth == "none":
            return {}
        secrets = []
        for name in self._variables():
            value = os.environ.get(name, "").strip()
            if not value or not value.isprintable() or (name.endswith("_USER") and ":" in value):
                raise self._error("auth", f"the environment variable {name} must be set, in one line, where tasks run")
            secrets.append(value)
        if self._settings.auth == "bearer":
            if not secrets[0].isascii():
                raise self._error("auth", f"the environment variable {self._variables()[0]} must be ASCII")
            return {"Authorization": f"Bearer {secrets[0]}"}
        return _basic(*secrets)

    def _of_connection(self, name: str) -> dict[str, str]:
        credentials = connection(name)
        password = credentials.password or ""
        login = credentials.login or ""
        if not password or not f"{login}{password}".isprintable() or ":" in login:
            raise self._error("connection", f"{name} must have a login and a password, or a token as its password")
        if login:
            return _basic(login, password)
        if not password.isascii():
            raise self._error("connection", f"the token of {name} must be ASCII")
        return {"Authorization": f"Bearer {password}"}


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _body(answer: urllib3.BaseHTTPResponse, seconds: float) -> bytes | None:
    """The whole body, or None if it is too large. Raises OSError if it takes too long."""
    deadline = time.monotonic() + seconds
    body = bytearray()
    while chunk := answer.read1(_CHUNK, decode_content=False):
        body += chunk
        if len(body) > _MAX_BYTES:
            answer.close()
            return None
        if time.monotonic() > deadline:
            answer.close()
            raise OSError(f"the answer took longer than {seconds:.0f} s")
    return bytes(body)


def _document(status: int, body: bytes | None) -> dict[str, Any] | None:
    """The object in the body; None if there is none. Raises ValueError if a good answer is not valid JSON."""
    if body is None:
        return None
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        if status == 200:
            raise ValueError(f"did not answer with valid JSON: {error}") from error
        return None
    return content if isinstance(content, dict) else None
