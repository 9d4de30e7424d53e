"""Known vulnerabilities of the pinned dependencies, by pip-audit.

pip-audit calls a package that its source does not know "not found", and ends well. So the source must first report
what is known of an old release, and then know each package; otherwise nothing was checked.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from release.licences import REVIEWED
from release.results import CheckFailed, CheckOutcome, NotChecked, Result, run
from release.workspace import EXTRAS, Workspace

_VULNERABLE: Final = "jinja2==2.10"
"""A release with vulnerabilities that each source of them has known for years."""


def checked(space: Workspace) -> Iterator[Result]:
    """Ask for the vulnerabilities of each extra's pins."""
    probe = space.work / "vulnerable.txt"
    probe.write_text(f"{_VULNERABLE}\n")
    if not found(audited(space, probe)):
        raise NotChecked(f"the source of vulnerabilities reports none of {_VULNERABLE}, so it is of no use")
    reviewed = tomllib.loads(REVIEWED.read_text(encoding="utf-8"))["vulnerabilities"]
    for extra in EXTRAS:
        report = audited(space, space.pins(extra))
        open_ = [name for name in found(report) if name.rpartition(" ")[2] not in reviewed]
        if open_:
            yield Result(f"vulnerabilities of {extra}", CheckOutcome.failed, ", ".join(open_))
        else:
            detail = f"none known in {len(report['dependencies'])} packages, but for {len(reviewed)} reviewed"
            yield Result(f"vulnerabilities of {extra}", CheckOutcome.passed, detail)


def audited(space: Workspace, requirements: Path) -> dict[str, Any]:
    """pip-audit's report on pinned requirements. Raises NotChecked if its source cannot be reached, or lacks one."""
    path = space.work / f"{requirements.stem}.audit.json"
    options = ("--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json", "--output", path)
    try:
        run(space.program("pip-audit"), *options, "--requirement", requirements)
    except CheckFailed as failure:  # as it also ends if it has found something
        if not path.exists():
            raise NotChecked(f"pip-audit cannot reach its source: {str(failure).splitlines()[-1]}") from failure
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [dependency["name"] for dependency in report["dependencies"] if "skip_reason" in dependency]
    if missing:
        part = f"{len(missing)} of {len(report['dependencies'])} packages"
        raise NotChecked(
            f"the source of vulnerabilities does not know {part} of {requirements.name}: {', '.join(missing)}"
        )
    return report


def found(report: Mapping[str, Any]) -> list[str]:
    """The vulnerabilities in a report: package, version and identifier."""
    return [
        f"{dependency['name']} {dependency['version']} {vulnerability['id']}"
        for dependency in report["dependencies"]
        for vulnerability in dependency["vulns"]
    ]
