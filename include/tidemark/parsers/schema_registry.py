"""Schemas by their number, from a registry or from files. A number's schema never changes, so it is kept once found.

A registry's answer concerns one of three things:

* The number alone, and for good: the schema, or the reason why there is none that can be read. The records that name it
  are refused with that reason.
* The registry for now: no connection, no answer in time, 408, 425, 429, 5xx. It is asked again, TRIES times with
  pauses; then :class:`tidemark.errors.RegistryUnavailable` ends the task, which Spark tries again.
* The settings: 401 and 403, a certificate that is not trusted, a redirect, 4xx in a form that is not a registry's.
  That is a :class:`tidemark.errors.ConfigError`. A 403 for one number concerns the number if others may be asked for.

A task believes "there is none of this number" until its end, and no other task does: its records were written before it
asked, and a producer registers a schema before it writes with it.
"""

from __future__ import annotations

import base64
import json
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import urllib3

from tidemark.concurrency import Lru, in_parallel
from tidemark.connections import connection
from tidemark.errors import ConfigError, RegistryUnavailable
from tidemark.parsers.confluent_framing import MAX_NUMBER, guid_of
from tidemark.parsers.settings import Registry, SettingsFile

TRIES: Final = 4
PAUSES_SECONDS: Final = (0.2, 1.0, 3.0)
CONNECTIONS: Final = 8
MAX_TEXT: Final = 1 << 20
"""The most characters of a schema with its references; Kafka's default for a message, in which a registry keeps it."""

MAX_REFERENCES: Final = 100
MAX_KEPT_TEXT: Final = 64 << 20
"""The most characters of schemas that a process keeps."""

_TRANSIENT: Final = {408, 425, 429}
_DENIED: Final = 403

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
"""``schemaType`` of a registry's answer; for Avro the answer has none."""

_ARTICLES: Final[Mapping[SchemaKind, str]] = {
    "AVRO": "an Avro schema",
    "PROTOBUF": "a Protobuf schema",
    "JSON": "a JSON Schema",
}


CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 10.0
"""The longest wait for a byte."""

DEADLINE_SECONDS: Final = 30.0
"""The longest wait for a whole answer."""

BRIEF_SECONDS: Final = 3.0
"""The limit of each wait if a person waits and can do without an answer."""

_MAX_ANSWER_BYTES: Final = 8 << 20
"""The most bytes of an answer: JSON may spell each character of a schema in six."""

_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Written:
    """The texts of a schema and its references, each after its own references; the schema's own is the last.

    ``names`` are the names of the references. A Protobuf schema's text is its FileDescriptorProto in base64.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of characters of all texts."""
        return sum(map(len, self.texts))


class Unreadable(Exception):
    """A number has no schema that can be read, for good; the message continues "names schema 7, which"."""


class Registered(NamedTuple):
    """The newest schema of a subject: its number in the registry, its version in the subject, and its texts."""

    number: int
    version: int
    written: Written


FindSchemas = Callable[[Sequence[int]], Mapping[int, Written | Unreadable]]
"""Finds the schema of each number. Raises RegistryUnavailable if one cannot be known now, and ConfigError if not before
the settings, or the environment, are corrected."""


def schemas_in_files(files: Mapping[int, SettingsFile], numbers: Sequence[int]) -> dict[int, Written | Unreadable]:
    """The schemas of ``numbers`` in files that the topics file names."""

    def read(content: SettingsFile | None) -> Written | Unreadable:
        if content is None:
            return Unreadable("is unknown")
        try:
            return Written((content.data.decode(),))
        except UnicodeDecodeError as error:
            return Unreadable(f"is not valid UTF-8: {error}")

    return {number: read(files.get(number)) for number in numbers}


_kept: Final[Lru[tuple[str, SchemaKind, str], Written]] = Lru(MAX_KEPT_TEXT, lambda written: written.size)
"""The schemas that this process has found, by registry, kind and number.

The kind is part of the key because a number may be asked for as one kind after another, to learn its kind.
"""


def _number(document: Any, name: str) -> int:
    number = document.get(name)
    if not isinstance(number, int):
        raise Unreadable(f"has no {name}")
    return number


class SchemaRegistry:
    """``GET <url>/schemas/ids/<number>`` or ``/schemas/guids/<guid>`` of Confluent's API; what is found is kept.

    With ``brief`` it asks once and waits for seconds, instead of TRIES times.
    """

    def __init__(self, settings: Registry, kind: SchemaKind = "AVRO", *, brief: bool = False) -> None:
        self._url = settings.url.rstrip("/")
        self._http = RegistryHttp(settings, CONNECTIONS, brief=brief)
        self._pauses = () if brief else PAUSES_SECONDS
        self._kind = kind
        self._format = "?format=serialized" if kind == "PROTOBUF" else ""

    def newest(self, subject: str) -> Registered:
        """The newest schema of ``subject``.

        Raises:
            RegistryUnavailable: it cannot be known now.
            ConfigError: the registry has none under that name, or none of this kind.
        """
        try:
            main = self._schema(f"/subjects/{quote(subject, safe='')}/versions/latest")
            return Registered(_number(main, "id"), _number(main, "version"), self._whole(main))
        except Unreadable as reason:
            rule = f"{subject}: its newest schema {reason}; correct the subject, or what is registered under it"
            raise ConfigError(self._url, [("parser.schema.subject", rule)]) from reason

    def find(self, numbers: Sequence[int]) -> Mapping[int, Written | Unreadable]:
        """The schemas, see :data:`FindSchemas`; several numbers at a time, over connections that stay open."""
        answers: dict[int, Written | Unreadable] = {}
        for number in numbers:
            if number > MAX_NUMBER and guid_of(number) is None:
                answers[number] = Unreadable(f"is unknown: the numbers of a registry end at {MAX_NUMBER}")
            elif kept := _kept.get(self._key(number)):
                answers[number] = kept
        wanted = [number for number in numbers if number not in answers]
        answers |= zip(wanted, in_parallel(self._find, wanted, CONNECTIONS), strict=True)
        return answers

    def _key(self, number: int) -> tuple[str, SchemaKind, str]:
        return self._url, self._kind, self._path(number)

    @staticmethod
    def _path(number: int) -> str:
        guid = guid_of(number)
        return f"/schemas/ids/{number}" if guid is None else f"/schemas/guids/{guid}"

    def _find(self, number: int) -> Written | Unreadable:
        try:
            written = self._whole(self._schema(self._path(number)))
        except Unreadable as reason:
            return reason
        _kept.keep(self._key(number), written)
        return written

    def _whole(self, main: Any) -> Written:
        """The schema of the answer ``main``, with its references. Raises Unreadable."""
        others: dict[tuple[str, int], tuple[str, str]] = {}
        self._gather(main, others, ())
        texts = (*(text for _, text in others.values()), main["schema"])
        written = Written(texts, tuple(name for name, _ in others.values()))
        if written.size > MAX_TEXT:
            raise Unreadable(f"has more than {MAX_TEXT} characters")
        return written

    def _gather(
        self, schema: Any, others: dict[tuple[str, int], tuple[str, str]], above: tuple[tuple[str, int], ...]
    ) -> None:
        """Add the references of ``schema``, each after its own references."""
        for reference in schema.get("references") or ():
            try:
                at = reference["subject"], reference["version"]
            except (TypeError, KeyError):
                at = None, None
            if not isinstance(at[0], str) or not isinstance(at[1], int):
                raise Unreadable("has a reference without subject and version")
            if at in above:
                raise Unreadable(f"refers to {at[0]} version {at[1]}, which refers to itself")
            if at in others:
                continue
            if len(others) + len(above) >= MAX_REFERENCES:
                raise Unreadable(f"refers to more than {MAX_REFERENCES} others")
            try:
                answer = self._schema(f"/subjects/{quote(at[0], safe='')}/versions/{at[1]}")
                self._gather(answer, others, (*above, at))
            except Unreadable as reason:
                raise Unreadable(f"refers to {at[0]} version {at[1]}, which {reason}") from reason
            others[at] = str(reference.get("name", "")), answer["schema"]

    def _schema(self, path: str) -> Any:
        """The registry's answer, with the text of a schema of this kind. Raises Unreadable."""
        path += self._format
        status, document = self._ask(path)
        if status != 200:
            self._refuse(path, status, document)
        if document is None:
            raise Unreadable("has an answer too large to read")
        kind = document.get("schemaType") or "AVRO"
        if kind != self._kind:
            raise Unreadable(f"is not {_ARTICLES[self._kind]}, but one of type {str(kind)[:40]}")
        if not isinstance(document.get("schema"), str):
            raise Unreadable("has no text")
        return document

    def _refuse(self, path: str, status: int, document: dict[str, Any] | None) -> None:
        """Raise the error of an answer other than 200."""
        if status == _DENIED and self._ask("/schemas/types")[0] not in {401, 403}:
            raise Unreadable("the registry does not let us read (403)")
        if status in {401, 403}:
            raise self._http.denied(status)
        code = (document or {}).get("error_code")
        if status < 400 or not isinstance(code, int):
            raise self._http.no_registry(path, status)
        raise Unreadable("is unknown" if status == 404 else f"the registry refuses ({status}, {code})")

    def _ask(self, path: str) -> tuple[int, dict[str, Any] | None]:
        """Ask until an answer is not transient. Raises RegistryUnavailable."""
        problem = ""
        for pause in (*self._pauses, None):
            try:
                status, document = self._http.get(path)
                if status < 500 and status not in _TRANSIENT:
                    return status, document
                problem = f"answered {status}"
            except (OSError, ValueError) as error:
                problem = str(error)
            if pause is not None:
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads requests of the same time
        raise RegistryUnavailable(f"{self._url}{path}", problem)


class RegistryHttp:
    """Connections to a schema registry over HTTP, kept open. Threads may share them.

    They authenticate by variables or by an Airflow connection, trust a private CA, and follow no redirects. Secrets
    come from the environment of the process, or from the Airflow connection that the settings name. They are sent only
    in the header of a request to the host of the registry's ``url``, which is why redirects are not followed, and
    errors name variables and connections and never their content.
    """

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

    def get(self, path: str) -> tuple[int, dict[str, Any] | None]:
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
        return answer.status, _document(answer.status, body)

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
        return ConfigError(self._url, [(f"registries.*.{field}", rule)])

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
        if len(body) > _MAX_ANSWER_BYTES:
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
