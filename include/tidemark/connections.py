"""Airflow's connections, by name, in Airflow's processes and in the jobs that they start.

Airflow's processes install their own lookup (:func:`use`). A job reads the file that the environment's
``TIDEMARK_CONNECTIONS`` names: JSON, for this user alone, removed when the job's task ends. Elsewhere there are none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import Field, TypeAdapter, ValidationError

from tidemark.config import Settings
from tidemark.errors import ConfigError

VARIABLE: Final = "TIDEMARK_CONNECTIONS"
"""The variable with the path of a job's file."""


class NamedConnection(Settings):
    """An Airflow connection: ``uri`` of host, schema and port; ``extra`` as text. Never shown, since it has secrets."""

    uri: str | None = Field(default=None, repr=False)
    login: str | None = Field(default=None, repr=False)
    password: str | None = Field(default=None, repr=False)
    extra: dict[str, str] = Field(default_factory=dict, repr=False)


Connections = Mapping[str, NamedConnection]

_FILE: Final = TypeAdapter(dict[str, NamedConnection])
_installed: list[Callable[[str], NamedConnection]] = []


def use(lookup: Callable[[str], NamedConnection]) -> None:
    """Use ``lookup`` for connections in this process from now on."""
    _installed[:] = [lookup]


def dumped(connections: Connections) -> bytes:
    """The content of a job's file."""
    return _FILE.dump_json(dict(connections))


def connection(name: str) -> NamedConnection:
    """The connection ``name``.

    Raises:
        ConfigError: there is no such connection, or this process is neither Airflow's nor a job that Airflow started.
    """
    if _installed:
        return _installed[0](name)
    named = _of_file().get(name)
    if named is None:
        rule = "is a connection of Airflow's, which only Airflow and the jobs that it starts are given"
        raise ConfigError("connections", [(name, f"{rule}; start the job by Airflow, or name variables instead")])
    return named


def _of_file() -> Connections:
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    try:
        return _FILE.validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as error:
        # The error's own text may quote a secret.
        raise ConfigError(path, [("", f"cannot be read as connections: {type(error).__name__}")]) from None
