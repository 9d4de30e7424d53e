"""The bill of materials of each extra, in the format CycloneDX."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion

from release.installations import environment, find, supported
from release.results import CheckFailed, CheckOutcome, Result, run
from release.version import stated
from release.workspace import EXTRAS, Workspace

_SCHEMA: Final = SchemaVersion.V1_6


def checked(space: Workspace) -> Iterator[Result]:
    """Write the bill of materials of each extra into ``dist``."""
    python = next((version for version in supported(space) if find(version)), None)
    if python is None:
        raise CheckFailed("no supported Python is on this machine, so nothing was installed")
    for extra in EXTRAS:
        bill = bill_of_materials(space, environment(space, extra, python) / "bin" / "python")
        bill_path(space, extra).write_text(validated(bill), encoding="utf-8")
        detail = f"{len(bill['components'])} components on Python {python}, valid by schema {_SCHEMA.to_version()}"
        yield Result(f"CycloneDX of {extra}", CheckOutcome.passed, detail)


def bill_path(space: Workspace, extra: str) -> Path:
    """The file with an extra's bill of materials."""
    return space.dist / f"tidemark_kafka-{stated(space.root)}-{extra}.cdx.json"


def bill_of_materials(space: Workspace, python: Path) -> dict[str, Any]:
    """The bill of materials of an environment, without addresses: its purl names a package."""
    options = ("--output-reproducible", "--spec-version", _SCHEMA.to_version(), "--mc-type", "library")
    project = ("--pyproject", space.root / "pyproject.toml")
    program = space.program("cyclonedx-py")
    text = run(program, "environment", *options, *project, python, env={"SOURCE_DATE_EPOCH": space.epoch})
    bill: dict[str, Any] = json.loads(text, object_hook=_without_addresses)
    return bill


def validated(bill: dict[str, Any]) -> str:
    """A bill of materials as text. Raises CheckFailed if it does not fit its schema, or has an address."""
    from cyclonedx.validation.json import JsonStrictValidator  # seconds, which each process of tests would wait for

    text = json.dumps(bill, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if error := JsonStrictValidator(_SCHEMA).validate_str(text):
        raise CheckFailed(f"the bill of materials does not fit its schema: {error}")
    if "://" in text.replace(bill["$schema"], ""):
        raise CheckFailed("the bill of materials has an address, perhaps of a registry; see _without_addresses")
    return text


def _without_addresses(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "externalReferences"}
