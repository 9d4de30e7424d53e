"""The house rules that no linter has: names, folders, words of documents, and first lines of docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ("include", "uploader_agent", "spark", "plugins", "dags")
PROGRAMS = (*SOURCES, "demo", "bench", "release")

MOST_WORDS = 44_500
"""Of all documents."""
MOST_MODULES = 20
"""Of a folder, beside its ``__init__``."""
MOST_ODD = 0.05
"""The part of docstrings' first lines that name no thing."""

SHARED = {
    "cli": "each program has its commands there",
    "openlineage": "the contract has names and facets, the jobs send events",
    "raw": "the formats of raw lie beneath those of all, and raw reads them",
    "table": "as raw",
}
"""Names of packages that stand in several places, with the reason."""

BEGINS_ODDLY = re.compile(r"(What|Whether|Those|How|Where|Who|Whose|Which|As|Likewise|The same|None if|If)\b")
LEANS_ODDLY = re.compile(r"\b(those|whose|of which|what)\b")


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(path for folder in ("docs", "deploy") for path in (ROOT / folder).rglob("*.md"))]


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def first_lines(path: Path) -> Iterator[str]:
    """The first lines of a file's docstrings."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring.splitlines()[0]


def is_odd(line: str) -> bool:
    """True if a docstring's first line begins with, or leans on, a pronoun in the place of a noun."""
    return bool(BEGINS_ODDLY.match(line) or LEANS_ODDLY.search(line))


def test_each_class_name_is_defined_once() -> None:
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules(*PROGRAMS):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_a_folder_has_few_modules() -> None:
    counts = Counter(path.parent for path in modules(*PROGRAMS) if path.name != "__init__.py")
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_a_packages_name_stands_for_one_thing() -> None:
    places: defaultdict[str, set[Path]] = defaultdict(set)
    for path in modules(*PROGRAMS):
        places[path.parent.name].add(path.parent)
    assert {name for name, folders in places.items() if len(folders) > 1} == SHARED.keys()


def test_the_documents_are_short() -> None:
    words = {str(path.relative_to(ROOT)): len(path.read_text().split()) for path in documents()}
    assert sum(words.values()) <= MOST_WORDS, words


def test_docstrings_name_their_things() -> None:
    lines = [(path, line) for path in modules(*SOURCES) for line in first_lines(path)]
    odd = [f"{path.relative_to(ROOT)}: {line}" for path, line in lines if is_odd(line)]
    assert len(odd) < MOST_ODD * len(lines), "\n".join(odd)


def test_no_variable_is_called_one() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules(*SOURCES)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Name) and node.id == "one" and isinstance(node.ctx, ast.Store)
    ]
    assert found == []


def test_the_check_sees_an_odd_line() -> None:
    assert is_odd("What is packed of those that no seal holds.")
    assert is_odd("Ranges whose pack is gone.")
    assert not is_odd("Ranges of the pack that no seal holds yet.")
    assert not is_odd("Ask the broker for the log start offset.")
