"""The agent's command line with another tuning than the standard one: ``python -m tests.support.tuned_agent``.

``… tuned_agent <tuning as JSON> -- <arguments>``. Tests state an agent's settings and its tuning together, by the names
of both: :func:`split` takes them apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from tests.support.paths import env_bin
from tidemark.config import Duration, Size
from uploader_agent import cli
from uploader_agent.tuning import AgentTuning

_TYPES: Final[dict[str, Any]] = {"hold_min_free": float, "fetch_segment": Size}
_FIELDS: Final = {field.name: TypeAdapter[Any](_TYPES.get(field.name, Duration)) for field in fields(AgentTuning)}


def tuned(values: Mapping[str, Any]) -> AgentTuning:
    """The standard tuning, but with ``values``: written as in a file of settings, such as ``50ms``."""
    return AgentTuning(**{name: _FIELDS[name].validate_python(value) for name, value in values.items()})


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings among ``given``, and the values of the tuning."""
    tuning = {name: value for name, value in given.items() if name in _FIELDS}
    return {name: value for name, value in given.items() if name not in _FIELDS}, tuning


def argument(values: Mapping[str, Any]) -> str:
    """``values`` for the command line of a program that calls :func:`of_argument`."""
    return json.dumps(dict(values))


def of_argument(text: str) -> AgentTuning:
    """The tuning that :func:`argument` wrote."""
    return tuned(json.loads(text))


def tuned_agent(values: Mapping[str, Any]) -> list[str | Path]:
    """The beginning of a command, in the agent's own environment and the tree's folder: the agent with this tuning."""
    return [env_bin("agent", "python"), "-m", "tests.support.tuned_agent", argument(values), "--"]


def main() -> None:
    text, _, *arguments = sys.argv[1:]
    sys.argv = ["tidemark-agent", *arguments]
    cli.main(of_argument(text))


if __name__ == "__main__":
    main()
