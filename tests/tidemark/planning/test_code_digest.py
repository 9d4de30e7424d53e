"""The digest of the code that makes files covers all that can change a file, and nothing that cannot."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tidemark.errors import ConfigError
from tidemark.planning import common

TREES = {"tidemark": ROOT / "include", "tidemark_spark": ROOT / "spark"}
WORK = {
    f"tidemark_spark.convert.{name}" for name in ("conversion", "replay", "rewriting.compaction", "rewriting.erasure")
}
"""What Spark's Python workers do with tasks: from here on, imports lead to all code that makes files."""

BESIDE = {
    "tidemark.backoff",
    "tidemark.catalogs",
    "tidemark.concurrency",
    "tidemark.config",
    "tidemark.connections",
    "tidemark.endpoints",
    "tidemark.errors",
    "tidemark.formats",
    "tidemark.installation",
    "tidemark.intervals",
    "tidemark.raw",
    "tidemark.schemas",
    "tidemark.storage",
    "tidemark.store",
    "tidemark.table",
    "tidemark.timestamps",
    "tidemark.topics",
    "tidemark.user_cache",
    "tidemark_spark.model",
}
"""What workers use beside: settings, which have a digest of their own; what is read and written; how to get there."""


def file_of(module: str) -> Path | None:
    """The file of a module of ours; None of others."""
    tree = TREES.get(module.partition(".")[0])
    if tree is None:
        return None
    path = tree.joinpath(*module.split("."))
    return next((one for one in (path / "__init__.py", path.with_suffix(".py")) if one.exists()), None)


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{one.name}" for one in node.names}
            found.update(one if file_of(one) else node.module for one in inner)
    return found


def reached(modules: set[str]) -> set[str]:
    """The modules of ours that ``modules`` lead to."""
    found: set[str] = set()
    new = {*modules}
    while new:
        found |= new
        new = {one for known in new if (path := file_of(known)) for one in imported(path) if file_of(one)} - found
    return found


def covered(module: str) -> bool:
    """Whether the digest covers it."""
    path = module.replace(".", "/")
    return any(path == one.removesuffix(".py") or path.startswith(f"{one}/") for one in common.CODE_SOURCES)


def beside(module: str) -> bool:
    """Whether it is known to make no file."""
    return any(module == one or module.startswith(f"{one}.") for one in BESIDE)


def test_all_that_a_worker_runs_is_covered_or_known_to_make_no_file() -> None:
    found = reached(WORK)
    assert "tidemark.decode.kernel" in found, "the search works"
    assert {one for one in found if not covered(one) and not beside(one)} == set()
    assert {one for one in BESIDE if not any(f"{module}.".startswith(f"{one}.") for module in found)} == set()


def test_each_source_is_there() -> None:
    for source in common.CODE_SOURCES:
        assert (TREES[source.partition("/")[0]] / source).exists(), source


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose files may be changed."""
    for name, tree in TREES.items():
        shutil.copytree(tree / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(common, "_root", lambda _: tmp_path)
    return tmp_path


def now() -> str:
    """The digest of the files as they are."""
    return common.code_digest.__wrapped__()


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("tidemark/decode/kernel.py", True),
        ("tidemark/parsers/avro/parser.py", True),
        ("tidemark/formats/table/base_columns.py", True),
        ("tidemark_spark/convert/row_sink.py", True),
        ("tidemark_spark/convert/rewriting/merge.py", True),
        ("tidemark/cli/app.py", False),
        ("tidemark_spark/run/driver.py", False),
        ("tidemark_spark/kinds/upkeep.py", False),
        ("tidemark_spark/jobs/ingest.py", False),
    ],
)
def test_what_makes_files_counts_and_nothing_else(file: str, counts: bool, copy: Path) -> None:
    before = now()
    with (copy / file).open("a") as appended:
        appended.write("# changed\n")
    assert (now() != before) is counts


def test_a_new_file_counts(copy: Path) -> None:
    before = now()
    (copy / "tidemark/parsers/more.py").write_text("")
    assert now() != before


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="tidemark: is missing: install"):
        now()
