"""What ``make dist`` makes: one wheel and one source distribution that have everything an installation needs."""

from __future__ import annotations

import ast
import configparser
import email
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.distributions import distributions
from tests.support.paths import ROOT
from tidemark import installation

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"tidemark": "include", "uploader_agent": "", "tidemark_spark": "spark", "tidemark_airflow": "plugins"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the distributions."""
    return distributions(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    [path] = dist.glob("*.whl")
    assert path.name == f"tidemark_kafka-{PROJECT['version']}-py3-none-any.whl"
    return zipfile.ZipFile(path)


def tracked(*folders: str) -> set[str]:
    """The files below ``folders`` that belong to the tree, whether committed yet or not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {path for path in found if (ROOT / path).exists()}


def test_the_wheel_has_all_modules_and_their_files(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for package, folder in PACKAGES.items():
        paths = tracked(f"{folder}/{package}" if folder else package)
        assert {path.removeprefix(f"{folder}/") for path in paths} <= names


def test_the_wheel_has_the_files_beside_the_packages(wheel: zipfile.ZipFile) -> None:
    names = {name.removeprefix("tidemark/shipped/") for name in wheel.namelist() if "/shipped/" in name}
    wanted = tracked("dags", "deploy", "spark/jobs") | {"deploy/topics.example.yaml"}
    assert names == wanted
    assert all(any(name.startswith(f"{path}/") for name in names) for path, _ in installation.FILES.values())


def test_the_wheel_has_the_projects_entry_points(wheel: zipfile.ZipFile) -> None:
    [name] = [one for one in wheel.namelist() if one.endswith(".dist-info/entry_points.txt")]
    found = configparser.ConfigParser(delimiters=["="])
    setattr(found, "optionxform", str)  # noqa: B010 - entry points' names keep their case; mypy takes no other way
    found.read_string(wheel.read(name).decode())
    wanted = {"console_scripts": PROJECT["scripts"], **PROJECT.get("entry-points", {})}
    assert {section: dict(found[section]) for section in found.sections()} == wanted


def test_the_extras_are_the_projects(wheel: zipfile.ZipFile) -> None:
    [name] = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Name"] == "tidemark-kafka"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    required = " ".join(metadata.get_all("Requires-Dist", []))
    assert "tidemark[" not in required, "that name is another project's"


def test_nothing_sends_people_to_the_other_projects_name() -> None:
    """Messages and pages that name an extra."""
    texts = {path: (ROOT / path).read_text() for path in tracked("docs", "README.md", "include", "plugins", "spark")
             if path.endswith((".py", ".md"))}  # fmt: skip
    assert [path for path, text in texts.items() if "tidemark[" in text] == []


def test_the_source_distribution_has_what_a_build_needs(dist: Path) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = [f"{folder}/{package}" if folder else package for package, folder in PACKAGES.items()]
    assert names >= tracked(
        *folders, "dags", "deploy", "spark/jobs", "requirements", "pyproject.toml", "hatch_build.py"
    )
    assert not {name for name in names if name.startswith(("tests/", "demo/", "bench/", "."))} - {".gitignore"}


def test_an_installed_wheel_finds_its_files(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    for name in wheel.namelist():
        wheel.extract(name, tmp_path)
    main = "import sys; from tidemark.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", main, "paths", "--output", "json"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found == {
        name: str(tmp_path / "tidemark" / "shipped" / path) for name, (path, _) in installation.FILES.items()
    }
    assert all(Path(path).is_dir() for path in found.values())


def test_an_editable_installation_uses_the_checkouts() -> None:
    assert installation.home() == ROOT
    assert {path.name for path in installation.folder("jobs").glob("*.py")} >= {"ingest.py", "run_plan.py"}


def test_the_command_takes_the_names_that_there_are() -> None:
    source = (ROOT / "include" / "tidemark" / "cli" / "app.py").read_text()
    [line] = [one for one in source.splitlines() if one.startswith("Folder = Literal[")]
    assert set(ast.literal_eval(line.removeprefix("Folder = Literal"))) == set(installation.FILES)
