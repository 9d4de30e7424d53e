"""pip-audit is stood in for: what it says is what it said with and without its source of vulnerabilities."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from release import vulnerabilities
from release.results import CheckOutcome, NotChecked, Result
from release.workspace import EXTRAS, Workspace

KNOWN = {"name": "jinja2", "version": "2.10", "vulns": [{"id": "PYSEC-1"}]}
SOUND = {"name": "boto3", "version": "1.44.5", "vulns": []}
FAULTY = {"name": "urllib3", "version": "1.24", "vulns": [{"id": "PYSEC-2"}, {"id": "PYSEC-3"}]}
SKIPPED = {"name": "boto3", "skip_reason": "Dependency not found"}

STAND_IN = """\
#!{python}
import json, pathlib, sys

answers = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
arguments = dict(zip(sys.argv, sys.argv[1:]))
answer = answers.get(pathlib.Path(arguments["--requirement"]).stem)
if answer is None:
    sys.exit("ConnectionError: name not known")
pathlib.Path(arguments["--output"]).write_text(json.dumps({{"dependencies": answer}}))
sys.exit(any(dependency.get("vulns") for dependency in answer))
"""


def results(space: Workspace, tmp_path: Path, answers: dict[str, Any]) -> list[Result]:
    """The results if pip-audit answers so, by the file of requirements."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "pip-audit").write_text(STAND_IN.format(python=sys.executable))
    (programs / "pip-audit").chmod(0o755)
    (programs / "pip-audit.json").write_text(json.dumps(answers))
    return list(vulnerabilities.checked(space._replace(programs=programs)))


def test_sound_pins_pass(space: Workspace, tmp_path: Path) -> None:
    found = results(space, tmp_path, {"vulnerable": [KNOWN], **{extra: [SOUND] for extra in EXTRAS}})
    assert [result.outcome for result in found] == 3 * [CheckOutcome.passed]


def test_a_vulnerability_fails(space: Workspace, tmp_path: Path) -> None:
    answers = {"vulnerable": [KNOWN], "agent": [SOUND], "spark": [SOUND, FAULTY], "airflow": [SOUND]}
    found = results(space, tmp_path, answers)
    assert [result.outcome for result in found] == [CheckOutcome.passed, CheckOutcome.failed, CheckOutcome.passed]
    assert found[1].detail == "urllib3 1.24 PYSEC-2, urllib3 1.24 PYSEC-3"


def test_a_reviewed_vulnerability_passes(space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed = tmp_path / "reviewed.toml"
    reviewed.write_text('[vulnerabilities]\nPYSEC-2 = "Nothing calls it."\n')
    monkeypatch.setattr(vulnerabilities, "REVIEWED", reviewed)
    found = results(space, tmp_path, {"vulnerable": [KNOWN], **{extra: [FAULTY] for extra in EXTRAS}})
    assert [result.detail for result in found] == 3 * ["urllib3 1.24 PYSEC-3"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "cannot reach its source: .*name not known"),
        ({"vulnerable": [SKIPPED]}, "does not know 1 of 1 packages of vulnerable.txt"),
        ({"vulnerable": [{**KNOWN, "vulns": []}]}, "reports none of jinja2==2.10"),
        ({"vulnerable": [KNOWN], "agent": [SOUND, SKIPPED]}, "does not know 1 of 2 packages of agent.txt: boto3"),
    ],
)
def test_no_answer_is_not_a_good_answer(space: Workspace, tmp_path: Path, answers: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotChecked, match=reason):
        results(space, tmp_path, answers)
