from __future__ import annotations

from typing import Any

import yaml

from release import installations
from release.workspace import Workspace
from tests.support.paths import ROOT

TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text()
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["jobs"]


def steps(job: str) -> list[str]:
    return [step.get("run") or step["uses"].partition("@")[0] for step in JOBS[job]["steps"]]


def test_nothing_is_published_before_all_checks_have_passed() -> None:
    built = steps("build")
    assert built.index("make PYTHON=python3.11 release-check") < built.index("actions/attest-build-provenance")
    assert (JOBS["index"]["needs"], JOBS["page"]["needs"]) == ("build", "index")
    assert not any("continue-on-error" in step or "if" in step for job in JOBS.values() for step in job["steps"])


def test_each_job_has_only_the_rights_that_it_needs() -> None:
    writes = {
        name: {right for right, kind in job["permissions"].items() if kind == "write"} for name, job in JOBS.items()
    }
    assert writes == {"build": {"attestations", "id-token"}, "index": {"id-token"}, "page": {"contents"}}
    assert "secrets." not in TEXT


def test_each_supported_python_is_there(space: Workspace) -> None:
    [setup] = [step for step in JOBS["build"]["steps"] if "setup-python" in step.get("uses", "")]
    assert sorted(setup["with"]["python-version"].split()) == installations.supported(space)
