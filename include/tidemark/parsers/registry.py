"""Schemas by their number, from a registry or from files. A number's schema never changes, so it is asked for once."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, Protocol

from tidemark.errors import RegistryUnavailable
from tidemark.parsers.settings import MAX_SCHEMA_BYTES, Content

TIMEOUT_SECONDS: Final = 10.0
TRIES: Final = 3
_UNKNOWN: Final = 40403
_PAUSE_SECONDS: Final = 0.5

_fetched: dict[tuple[str, int], Any] = {}


class Schemas(Protocol):
    """Finds a schema by its number."""

    def find(self, number: int) -> Any | None:
        """The schema as JSON, or None if there is none of this number. Raises RegistryUnavailable."""
        ...


class SchemaFiles:
    """Schemas that the topics file names."""

    def __init__(self, contents: Mapping[int, Content]) -> None:
        self._contents = contents

    def find(self, number: int) -> Any | None:
        """See :class:`Schemas`."""
        found = self._contents.get(number)
        return None if found is None else json.loads(found.data)


class SchemaRegistry:
    """``GET <url>/schemas/ids/<number>`` of Confluent's API; what it answers is kept for the process."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def find(self, number: int) -> Any | None:
        """See :class:`Schemas`; a number that is unknown now is asked for again by the next task."""
        key = self._url, number
        if key not in _fetched:
            found = self._fetch(f"{self._url}/schemas/ids/{number}")
            if found is None:
                return None
            _fetched[key] = found
        return _fetched[key]

    def _fetch(self, url: str) -> Any | None:
        problem = ""
        for left in reversed(range(TRIES)):
            try:
                with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http by the settings
                    return _schema(url, answer.read(MAX_SCHEMA_BYTES))
            except urllib.error.HTTPError as error:
                if error.code == 404 and _code(error.read(MAX_SCHEMA_BYTES)) == _UNKNOWN:
                    return None
                problem = f"answered {error.code}"
            except (OSError, ValueError) as error:
                problem = str(error)
            if left:
                time.sleep(_PAUSE_SECONDS)
        raise RegistryUnavailable(url, problem)


def _schema(url: str, body: bytes) -> Any:
    answer = json.loads(body)
    if answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
        raise RegistryUnavailable(url, "is no Avro schema that stands by itself; keep it in a directory of schemas")
    return json.loads(answer["schema"])


def _code(body: bytes) -> Any:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None
