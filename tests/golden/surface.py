"""The public surface as text: settings, commands, metrics, columns and Python names, as the code defines them.

``surface.json`` has the surface of this tree, and that of a released version's folder the one of that version.
``make surface`` writes the former. Beside it, ``answers.json`` has the JSON of commands (:mod:`tests.golden.answers`),
and ``dags.json`` the DAGs with their parameters (:mod:`tests.dags.surface`).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, EnumType
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import pyarrow as pa
import typer
from pydantic import BaseModel

import tidemark
from tests.golden import HERE
from tests.golden.fields import fields_of
from tidemark.brokersets.settings import BrokersetsFile
from tidemark.cli.app import app as people
from tidemark.decode import SCHEMA as TABLE
from tidemark.jobs.options import Word, user
from tidemark.jobs.registry import JOBS
from tidemark.topics import Deployment
from tidemark_airflow.options import OPTIONS, SECTION
from tidemark_spark.convert.quarantine import SCHEMA as QUARANTINE
from uploader_agent.cli import app as agent
from uploader_agent.observability import metrics_doc
from uploader_agent.observability.metrics import PREFIX, Metrics
from uploader_agent.settings import AgentSettings

PRESENT: Final = HERE / "surface.json"

FILES: Final = ("surface.json", "answers.json", "dags.json")
"""The listings of the public surface."""

Surface = Mapping[str, Mapping[str, str]]
"""By section the entries: by name the type, default or signature."""


def surface() -> Surface:
    """The surface that the code defines."""
    return {
        "topics file": _settings(Deployment),
        "agent file": _settings(AgentSettings),
        "brokersets file": _settings(BrokersetsFile),
        "options of Airflow": {f"[{SECTION}] {option.name}": _option_of_airflow(option) for option in OPTIONS},
        "commands": {**_commands("tidemark", people), **_commands("tidemark-agent", agent)},
        "jobs": dict(_jobs()),
        "metrics": {
            row.name: " ".join([row.kind, *row.labels])
            for row in metrics_doc.lines(Metrics())
            if row.name.startswith(PREFIX)
        },
        "columns": {**_columns("table", TABLE), **_columns("quarantine", QUARANTINE)},
        "Python": dict(_names()),
    }


def text(listed: Mapping[str, Any]) -> str:
    """The content of a listing's file."""
    return json.dumps(listed, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def changes(released: Surface, present: Surface) -> dict[str, str]:
    """The entries that are not as they were, with the change: by section and name."""
    found: dict[str, str] = {}
    for section in sorted(released.keys() | present.keys()):
        before, now = released.get(section, {}), present.get(section, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                found[f"{section}: {name}"] = f"was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"
    return found


def unmentioned(changed: Mapping[str, str], notes: str) -> list[str]:
    """Messages about ``changed`` entries that ``notes`` do not name between backquotes."""
    quoted = {word for part in re.findall(r"`([^`]+)`", notes) for word in _words(part)}
    return [
        f"{name} {change}: name `{_words(name)[-1]}` in CHANGELOG.md, in a section above that of the last release"
        for name, change in changed.items()
        if _words(name)[-1] not in quoted
    ]


def section_above(changelog: str, version: str) -> str:
    """The sections of the CHANGELOG above that of ``version``, which is written ``1.0`` for all of 1.0."""
    above = re.split(rf"^## {re.escape(version)}\b", changelog, maxsplit=1, flags=re.MULTILINE)
    assert len(above) == 2, f"CHANGELOG.md has no section of {version}"
    return above[0]


def _words(name: str) -> list[str]:
    """The words of an entry's name, of which the last is that of the entry itself: an option keeps its dashes."""
    return re.findall(r"-{0,2}\w[\w-]*", name)


def _settings(model: type[BaseModel]) -> dict[str, str]:
    schema = model.model_json_schema()
    return fields_of(schema, schema.pop("$defs", {}))


def _option_of_airflow(option: Any) -> str:
    return str(option.type) + ("" if option.default is None else f" = {option.default}")


def _commands(program: str, app: typer.Typer) -> dict[str, str]:
    return dict(_of_command(program, typer.main.get_command(app)))


def _of_command(path: str, command: Any) -> Iterator[tuple[str, str]]:
    yield path, "command"
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        shown = "/".join(names) if names[0].startswith("-") else parameter.metavar or names[0].upper()
        yield f"{path} {shown}", _parameter(parameter)
    for name, below in getattr(command, "commands", {}).items():
        yield from _of_command(f"{path} {name}", below)


def _parameter(parameter: Any) -> str:
    annotation: Any = parameter.type_descriptor.annotation
    default = parameter.default
    facts = [_kind(annotation)]
    facts += ["required"] if parameter.required else [] if default is None or callable(default) else [f"= {default}"]
    facts += ["repeatable"] if parameter.multiple or parameter.nargs == -1 else []
    facts += [f"${parameter.envvar}"] if parameter.envvar else []
    return " ".join(facts)


def _kind(annotation: Any) -> str:
    """The type of a parameter, or its choices."""
    if isinstance(annotation, EnumType):
        members: Iterable[Any] = annotation
        return "|".join(str(member.value) for member in members)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return str(annotation.__name__)


def _jobs() -> Iterator[tuple[str, str]]:
    for job in JOBS.values():
        yield job.program(), "job"
        for word in job.words().values():
            yield f"{job.program()} {word.flag}", _word(word)


def _word(word: Word) -> str:
    default = word.field.get_default(call_default_factory=True)
    facts = ["flag" if word.is_flag else "|".join(word.choices) or "value"]
    facts += ["required"] if word.field.is_required() else []
    facts += ["repeatable"] if word.repeats else []
    facts += [f"= {default}"] if default and not word.field.is_required() else []
    return " ".join(facts).replace(user(), "USER@HOST")


def _columns(table: str, schema: pa.Schema) -> dict[str, str]:
    return {f"{table}.{field.name}": f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}


def _names() -> Iterator[tuple[str, str]]:
    for name in tidemark.__all__:
        thing = getattr(tidemark, name)
        yield f"tidemark.{name}", "enum" if isinstance(thing, EnumType) else _signature(thing)
        if isinstance(thing, type):
            yield from ((f"tidemark.{name}.{member}", shown) for member, shown in _members(thing))


def _members(kind: type[Any]) -> Iterator[tuple[str, str]]:
    for name in dir(kind):
        owner: type[Any] = (
            next(base for base in kind.__mro__ if name in vars(base)) if not name.startswith("_") else object
        )
        if not owner.__module__.startswith("tidemark"):
            continue
        member: Any = inspect.getattr_static(kind, name)
        if isinstance(member, Enum):
            yield name, repr(member.value)
        else:
            yield name, "property" if isinstance(member, property) else _signature(getattr(kind, name))


def _signature(thing: Any) -> str:
    return str(inspect.signature(thing)) if callable(thing) else type(thing).__name__


def read(path: Path) -> Any:
    """A listing of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PRESENT.write_text(text(surface()), encoding="utf-8")
