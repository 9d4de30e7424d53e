"""The licences of all dependencies, from the bills of materials: each is permissive, or somebody has reviewed it."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from license_expression import ExpressionError, get_spdx_licensing

from release.materials import bill_path
from release.results import CheckFailed, CheckOutcome, Result
from release.workspace import EXTRAS, Workspace

REVIEWED: Final = Path(__file__).parent / "reviewed.toml"
"""The permissive licences; packages with other licences, and vulnerabilities, that were reviewed."""

_spdx: Final = get_spdx_licensing()


class Dependency(NamedTuple):
    """A package that an extra brings, and the licences that its metadata declares."""

    name: str
    version: str
    licences: tuple[str, ...]


def checked(space: Workspace) -> Iterator[Result]:
    """Write the list of all dependencies with their licences into ``dist``, and check them."""
    extras: defaultdict[Dependency, list[str]] = defaultdict(list)
    for extra in EXTRAS:
        path = bill_path(space, extra)
        if not path.exists():
            raise CheckFailed(f"{path.name} is missing, since its check failed")
        for dependency in dependencies(json.loads(path.read_text(encoding="utf-8"))):
            extras[dependency].append(extra)
    lines = [
        f"{dependency.name} {dependency.version} ({', '.join(names)}): {'; '.join(dependency.licences) or 'undeclared'}"
        for dependency, names in sorted(extras.items(), key=lambda item: item[0].name.lower())
    ]
    (space.dist / "licences.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reviewed = tomllib.loads(REVIEWED.read_text(encoding="utf-8"))
    if wrong := refusals(extras, reviewed["permissive"], reviewed["packages"]):
        raise CheckFailed("; ".join(wrong))
    detail = f"{len(extras)} dependencies are permissive, or among the {len(reviewed['packages'])} that were reviewed"
    yield Result("licences", CheckOutcome.passed, detail)


def dependencies(bill: Mapping[str, Any]) -> list[Dependency]:
    """The dependencies in a bill of materials."""
    return [
        Dependency(component["name"], component["version"], tuple(map(_declared, component.get("licenses", ()))))
        for component in bill["components"]
    ]


def refusals(
    found: Iterable[Dependency], permissive: Collection[str], reviewed: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Messages about packages that need a review, and about reviews that fit no package any more.

    A package needs one if its metadata declares nothing, or something that is not permissive.
    """
    needed, messages = set[str](), []
    for dependency in found:
        if dependency.licences and all(is_permissive(licence, permissive) for licence in dependency.licences):
            continue
        needed.add(dependency.name)
        review = reviewed.get(dependency.name)
        if review is None or review["declared"] != [*dependency.licences]:
            declared = json.dumps(dependency.licences)
            messages.append(f"{dependency.name} {dependency.version} declares {declared}: review it in {REVIEWED.name}")
    stale = sorted(reviewed.keys() - needed)
    return messages + [f"{name} needs no review: remove it from {REVIEWED.name}" for name in stale]


def is_permissive(licence: str, permissive: Collection[str]) -> bool:
    """True if a licence, or what an SPDX expression allows to choose, is in ``permissive``."""
    if licence in permissive:
        return True
    try:
        return _holds(_spdx.parse(licence), permissive)
    except ExpressionError:
        return False  # a classifier, or words of the package's own


def _holds(expression: Any, permissive: Collection[str]) -> bool:
    """True if one side of each OR, and all sides of each AND, are permissive."""
    if isinstance(expression, _spdx.OR):
        return any(_holds(side, permissive) for side in expression.args)
    if isinstance(expression, _spdx.AND):
        return all(_holds(side, permissive) for side in expression.args)
    return str(expression) in permissive


def _declared(entry: Mapping[str, Any]) -> str:
    """The licence that an entry of a component names: an expression, an identifier, or a trove classifier."""
    licence = entry.get("license", {})
    return str(entry.get("expression") or licence.get("id") or licence["name"])
