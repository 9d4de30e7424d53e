"""Imports go one way only, and what must stay light stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Who may import whom among our own packages.
ALLOWED = {
    "include/tidemark": {"tidemark"},
    "uploader_agent": {"tidemark", "uploader_agent"},
    "spark": {"tidemark", "tidemark_spark"},
    "plugins": {"tidemark", "tidemark_airflow"},
    "dags": {"tidemark", "tidemark_airflow"},
}
# The packages and modules of each by floors: one may import those of the floors before its own, and no others.
FLOORS = {
    "include/tidemark": (
        "errors words",
        "backoff concurrency installation intervals kafka_admin terminal timestamps",
        "config kafka_log offset_bounds user_cache",
        "connections store",
        "formats",
        "brokersets catalogs decode endpoints jobs kafka_tier",
        "parsers",
        "topics",
        "schemas storage",
        "raw",
        "table",
        "backfill raw_topic",
        "erasure",
        "planning remote",
        "openlineage",
        "consumer inspection restore",
        "monitoring onboarding",
        "cli",
    ),
    "uploader_agent": (
        "heap runtime settings tuning",
        "disk observability",
        "broker hold",
        "stored",
        "log_source",
        "intake upload",
        "packs",
        "repair",
        "partitions",
        "scheduling verify watermark_index",
        "packing remote_tier",
        "components",
        "agent",
        "cli",
    ),
    "spark/tidemark_spark": (
        "model openlineage",
        "convert",
        "audit cluster datasource erasing kinds mirror",
        "export run",
        "erasure_pass live rebuild retention state",
        "jobs",
    ),
    "plugins/tidemark_airflow": (
        "early options",
        "configuration provider",
        "connections",
        "planned settings triggers",
        "assets links submitters",
        "notifications operators sensors",
        "dag_factories",
        "web",
        "plugin",
    ),
}
OURS = {"tidemark", "uploader_agent", "tidemark_spark", "tidemark_airflow", "tests", "demo", "bench", "release"}
HEAVY = ["pyspark", "airflow", "pandas", "numpy", "pyarrow", "numba", "deltalake", "boto3", "botocore", "obstore"]


@cache
def names_in(text: str) -> frozenset[str]:
    """The full names that a source imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def imported_modules(path: Path) -> frozenset[str]:
    """The full names of the modules that a file imports, wherever in it."""
    return names_in(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in it."""
    return {name.partition(".")[0] for name in imported_modules(path)}


def sources(folder: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} has no source"
    return files


@pytest.mark.parametrize("folder", ALLOWED)
def test_our_packages_import_one_way(folder: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted((imported(path) & OURS) - ALLOWED[folder])
        for path in sources(folder)
        if (imported(path) & OURS) - ALLOWED[folder]
    }
    assert not wrong


def upward_imports(folder: str, path: Path) -> list[str]:
    """What ``path``, below ``folder``, imports from its own floor or one above it."""
    floor = {name: number for number, names in enumerate(FLOORS[folder]) for name in names.split()}
    top = folder.rpartition("/")[2]
    own = path.relative_to(ROOT / folder).with_suffix("").parts[0]
    units = {name.split(".")[1] for name in imported_modules(path) if name.startswith(f"{top}.")} & floor.keys()
    return sorted(unit for unit in units - {own} if floor[unit] >= floor[own])


@pytest.mark.parametrize("folder", FLOORS)
def test_packages_import_from_lower_floors_only(folder: str) -> None:
    paths = [path for path in sources(folder) if path != ROOT / folder / "__init__.py"]
    units = {path.relative_to(ROOT / folder).with_suffix("").parts[0] for path in paths}
    assert units == set(" ".join(FLOORS[folder]).split()), "each package and module has a floor"
    assert not {str(path): found for path in paths if (found := upward_imports(folder, path))}


@pytest.mark.parametrize("folder", FLOORS)
def test_the_documented_packages_are_those_on_the_floors(folder: str) -> None:
    """From the top floor down, as docs/code.md lists them."""
    text = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    section = next(
        one for one in text.split("\n## ") if one.partition("\n")[0].endswith(f"`{folder.removesuffix('/')}`")
    )
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")]
    floor = {name: number for number, names in enumerate(FLOORS[folder]) for name in names.split()}
    assert sorted(name for row in rows for name in row) == sorted(floor)
    tops = [max(floor[name] for name in row) for row in rows]
    assert tops == sorted(tops, reverse=True)


def test_the_check_sees_an_import_from_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "uploader_agent" / "disk" / "seeded.py"
    path.parent.mkdir(parents=True)
    path.write_text("from uploader_agent import observability\nfrom uploader_agent.disk import log_dirs, runtime\n")
    assert upward_imports("uploader_agent", path) == ["observability"], "of the same floor"
    path.write_text(
        "def late():\n    import uploader_agent.cli.start\n    from uploader_agent.runtime import utc_now\n"
    )
    assert upward_imports("uploader_agent", path) == ["cli"]


def test_the_contract_knows_neither_airflow_nor_spark() -> None:
    for folder, banned in {
        "include/tidemark": {"airflow", "pyspark"},
        "uploader_agent": {"airflow", "pyspark", "pyarrow", "numpy", "numba"},
        "spark": {"airflow"},
        "plugins": {"pyspark"},
        "dags": {"pyspark"},
    }.items():
        for path in sources(folder):
            assert not imported(path) & banned, path


def loaded_by(statement: str) -> set[str]:
    """What a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_importing_the_agent_loads_nothing_heavy() -> None:
    loaded = loaded_by("import uploader_agent.cli, uploader_agent.agent")
    assert "uploader_agent" in loaded
    assert not loaded & {"pyarrow", "numpy", "numba", "pandas", "pyspark", "deltalake", "obstore", "ruamel"}


def test_the_command_loads_what_only_some_commands_need_when_they_run() -> None:
    loaded = loaded_by("import tidemark.cli")
    assert "tidemark" in loaded
    assert not loaded & {"ruamel", "kafka", "pyarrow", "numpy"}


def test_what_airflow_parses_loads_nothing_heavy() -> None:
    formats = "formats.table.ledger formats.table.plan formats.raw.watermark_index"
    names = f"topics schemas table.delta_table planning monitoring.health monitoring.incidents {formats}".split()
    assert not loaded_by("; ".join(f"import tidemark.{name}" for name in names)) & set(HEAVY)


def test_the_remote_tier_knows_no_kafka_client() -> None:
    for path in sources("include/tidemark/remote"):
        assert not imported(path) & {"kafka", "confluent_kafka"}, path
        assert not {name for name in imported_modules(path) if name.startswith("tidemark.consumer")}, path


def test_nobody_imports_the_consumer_but_who_reads() -> None:
    """Not the agent, Spark or Airflow; and in the contract, the command line alone, where it is asked for."""
    readers = ("consumer", "cli", "restore")
    others = [path for path in sources("include/tidemark") if path.relative_to(ROOT).parts[2] not in readers]
    others.remove(ROOT / "include/tidemark/__init__.py")
    for folder in ("uploader_agent", "spark", "plugins", "dags"):
        others += sources(folder)
    for path in others:
        found = imported_modules(path)
        assert not {name for name in found if name.startswith(("tidemark.consumer", "tidemark.TieredConsumer"))}, path


def test_importing_tidemark_loads_nothing_of_its_readers() -> None:
    loaded = loaded_by("import tidemark; dir(tidemark)")
    assert "tidemark" in loaded
    assert not loaded & {*HEAVY, "kafka", "pydantic"}


@pytest.mark.parametrize("name", ["Mode", "Storage", "TieredConsumer"])
def test_what_tidemark_exports_is_found_when_it_is_asked_for(name: str) -> None:
    import tidemark

    assert name in dir(tidemark)
    assert getattr(tidemark, name).__name__ == name


def test_the_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    path = tmp_path / "seeded.py"
    path.write_text("def late():\n    from uploader_agent.agent import run\n    import airflow.sdk\n")
    assert imported(path) == {"uploader_agent", "airflow"}
