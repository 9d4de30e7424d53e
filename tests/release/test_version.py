from __future__ import annotations

import re
from pathlib import Path

import pytest

from release import version
from release.results import CheckFailed, run
from tests.support.paths import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the version 1.2.3 in five places, and others' versions."""
    texts = {
        "pyproject.toml": '[project]\nversion = "1.2.3"\ndependencies = ["other==0.9.9"]\n',
        "docker-compose.yaml": "image: tidemark-agent:1.2.3\nimage: kafka:4.3.1\n",
        "deploy/helm/tidemark-agent/Chart.yaml": 'apiVersion: v2\nversion: 1.2.3\nappVersion: "1.2.3"\n',
        "docs/page.md": "pip install tidemark_kafka-1.2.3-py3-none-any.whl\n",
        "tests/test_upgrades.py": "tidemark_kafka-1.0.0-py3-none-any.whl\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    run("git", "init", "--quiet", tmp_path)
    return tmp_path


def test_charts_images_and_documents_have_the_packages_version() -> None:
    found = list(version.mentions())
    assert {mention.version for mention in found} == {version.stated()}
    assert {mention.path for mention in found} >= {
        "pyproject.toml",
        "docker-compose.yaml",
        "deploy/helm/airflow/spark-defaults.conf",
        "deploy/helm/airflow/values.yaml",
        "deploy/helm/tidemark-agent/Chart.yaml",
    }


def test_the_changelog_begins_with_the_packages_version_or_with_what_comes_next() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert version.stated() == next(heading for heading in headings if heading != "Unreleased")


def test_a_new_version_is_written_everywhere_and_nowhere_else(tree: Path) -> None:
    version.write("1.3.0", tree)
    assert version.stated(tree) == "1.3.0"
    assert [mention.version for mention in version.mentions(tree)] == 5 * ["1.3.0"]
    assert "other==0.9.9" in (tree / "pyproject.toml").read_text()
    assert "kafka:4.3.1" in (tree / "docker-compose.yaml").read_text()
    assert "tidemark_kafka-1.0.0" in (tree / "tests" / "test_upgrades.py").read_text()


def test_notes_are_the_versions_section() -> None:
    changelog = (
        "# Changes\n\n## Unreleased\n\n* A\n\n## 1.1.0 - 2027-01-02\n\n* B\n* C\n\n## 1.0.0 - 2026-11-26\n\n* D\n"
    )
    assert version.notes(changelog, "1.1.0") == "* B\n* C\n"
    assert version.notes(changelog, "1.0.0") == "* D\n"


@pytest.mark.parametrize("heading", ["1.1.0", "1.1.0 (today)", "1.1.01 - 2027-01-02", "Unreleased"])
def test_no_notes_without_a_dated_section(heading: str) -> None:
    with pytest.raises(CheckFailed, match=r"`## 1\.1\.0 - <date>`"):
        version.notes(f"# Changes\n\n## {heading}\n\n* A\n", "1.1.0")
