"""The documents say what is there: every key of a configuration, every link, every command."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel

from bench.cost import EXAMPLES, Fleet, PerRun, Rates, bill_of, day
from tidemark import errors
from tidemark.cli.app import app
from tidemark.config import parse
from tidemark.monitoring.incidents import KINDS
from tidemark.topics import Deployment, TopicSettings
from uploader_agent.cli import app as agent_app
from uploader_agent.settings import AgentSettings, load_settings

ROOT = Path(__file__).parent.parent
COMMANDS = {"tidemark": typer.main.get_command(app), "tidemark-agent": typer.main.get_command(agent_app)}
TOLD = ("include/tidemark/monitoring", "uploader_agent", "plugins")
"""Where messages name commands. (A Spark application is named tidemark as well.)"""

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all settings below ``model``."""
    found: list[str] = []
    for name, field in model.model_fields.items():
        parts = [one for one in get_args(field.annotation) if one is not NoneType]
        inner = parts[0] if len(parts) == 1 else field.annotation  # what may be left out is documented all the same
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += fields(inner, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found


def test_every_key_of_the_topics_file_is_documented() -> None:
    text = (ROOT / "docs" / "topics.md").read_text()
    keys = [key for key in fields(Deployment) if not key.startswith("topics.")] + [
        f"topics[].{key}" for key in fields(TopicSettings)
    ]
    missing = [key for key in keys if f"`{key}`" not in text and f"`{key}.<topic>`" not in text]
    assert not missing


def test_every_key_of_the_agents_file_is_documented() -> None:
    text = (ROOT / "docs" / "agent.md").read_text()
    keys = {key for key in fields(AgentSettings) if not key.startswith(("raw.", "store."))} | {"raw.url", "store"}
    assert not [key for key in keys if f"`{key}`" not in text]


def test_the_documented_agent_file_is_valid(tmp_path: Path) -> None:
    """And so are the pieces shown later, put into it."""
    example, *pieces = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "agent.md").read_text(), re.DOTALL)
    path, whole = tmp_path / "agent.yaml", yaml.safe_load(example)
    path.write_text(example)
    assert load_settings(path).raw.url == "s3://raw/tidemark"
    for piece in map(yaml.safe_load, pieces):
        merged = {section: whole.get(section, {}) | values for section, values in piece.items()}
        path.write_text(yaml.safe_dump(whole | merged))
        load_settings(path)


def test_the_documented_topics_file_is_valid() -> None:
    example, *_ = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "topics.md").read_text(), re.DOTALL)
    assert [one.table for one in parse(Deployment, example, "docs/topics.md", {}).topics] == ["clicks", "sales"]


def test_every_incident_is_documented() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(KINDS)


def test_troubleshooting_names_every_incident_and_error() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    kinds = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
    leaves = [error.__name__ for error in kinds if not error.__subclasses__() and error is not errors.WakeupError]
    assert not [name for name in (*KINDS, *leaves) if f"`{name}`" not in text]


def test_the_list_of_pages_has_every_page() -> None:
    folder = ROOT / "docs"
    text = (folder / "README.md").read_text()
    assert not [page.name for page in folder.glob("*.md") if page.name != "README.md" and f"({page.name}" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub names them, and those that stand before a heading."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    named = re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)
    return {*named, *(re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)]+)\)", page.read_text())
    assert not [
        (target, name) for target, name in found if name not in anchors(page.parent / target if target else page)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
    assert named <= targets


def missing_commands(text: str) -> list[str]:
    """The lines of command in ``text`` that neither program has."""
    found = re.findall(r"^\s*(tidemark(?:-agent)?) ([a-z][a-z-]+)(?: ([a-z][a-z-]*))?", text, re.MULTILINE)
    missing = []
    for program, command, argument in found:
        at: Any = COMMANDS[program]
        for word in (command, argument):
            commands = getattr(at, "commands", None)
            if commands is None or not word:
                break
            if word not in commands:
                missing.append(f"{program} {word}")
                break
            at = commands[word]
    return missing


@pytest.mark.parametrize("page", [one for one in PAGES if one.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_named_commands_exist(page: Path) -> None:
    assert not missing_commands("\n".join(re.findall(r"`([^`]+)`", page.read_text())))


@pytest.mark.parametrize("folder", TOLD)
def test_commands_in_messages_exist(folder: str) -> None:
    trees = [ast.parse(one.read_text()) for one in (ROOT / folder).rglob("*.py")]
    texts = "\n".join(
        one.value
        for tree in trees
        for one in ast.walk(tree)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
    named = re.findall(r"\btidemark(?:-agent)? .+", texts)
    assert named
    assert not missing_commands("\n".join(named))


def test_a_command_that_is_not_there_is_seen() -> None:
    assert missing_commands("tidemark-agent backfill orders 0\ntidemark status orders\ntidemark config chek") == [
        "tidemark-agent backfill",
        "tidemark chek",
    ]


HOMES = {
    "tidemark": "include/tidemark",
    "tidemark_airflow": "plugins/tidemark_airflow",
    "tidemark_spark": "spark/tidemark_spark",
    "uploader_agent": "uploader_agent",
}
TOPS = ("include", "spark", "plugins")
"""Folders of packages."""


def has_name(dotted: str) -> bool:
    """Whether there is such a module of ours, or such a name in one."""
    package, *parts = dotted.split(".")
    for count in range(len(parts), -1, -1):
        path = ROOT.joinpath(HOMES[package], *parts[:count])
        found = [one for one in (path.with_suffix(".py"), path / "__init__.py") if one.exists()]
        if found:
            rest = parts[count:]
            return not rest or re.search(rf"\b{rest[0]}\b", found[0].read_text()) is not None
    return False


@pytest.mark.parametrize("page", [one for one in PAGES if one.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_named_files_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    files = {
        str(one.relative_to(ROOT))
        for folder in (*HOMES.values(), "dags", "spark", "tests", "bench", "demo")
        for one in (ROOT / folder).rglob("*.py")
    }
    named = re.findall(r"`([A-Za-z_][\w./]*/\w+\.py)`", text)
    assert not [name for name in named if not any(f"/{one}".endswith(f"/{name}") for one in files)]
    assert not [name for name in re.findall(rf"`((?:{'|'.join(HOMES)})(?:\.\w+)+)", text) if not has_name(name)]


def test_a_name_that_is_not_there_is_seen() -> None:
    assert has_name("tidemark.store.Store")
    assert has_name("tidemark.formats.table.base_columns.BASE_COLUMNS")
    assert not has_name("tidemark.layout")
    assert not has_name("tidemark.store.Lake")


def glossary() -> list[tuple[str, str]]:
    """(terms, places) of each row of the glossary."""
    rows = [line.strip("|").split("|") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()]
    return [(row[0].strip(), row[-1].strip()) for row in rows if len(row) == 3][2:]


def repeated(terms: Iterable[str]) -> list[str]:
    """The words that stand more than once in ``terms``, whatever stands behind them in parentheses."""
    words = [word.strip().casefold() for term in terms for word in re.sub(r"\(.*?\)", "", term).split(",")]
    return sorted(word for word, count in Counter(words).items() if count > 1)


def test_each_word_of_the_glossary_has_one_meaning() -> None:
    terms = [terms for terms, _ in glossary()]
    assert len(terms) > 50
    assert not repeated(terms)
    assert terms == sorted(terms, key=lambda term: term.casefold().replace("-", ""))


def test_a_word_with_two_meanings_is_seen() -> None:
    assert repeated(["final (date)", "Final (segment)", "sealed segment, seal", "tail"]) == ["final"]


def test_the_places_in_the_glossary_exist() -> None:
    paths = [path for _, place in glossary() for path in re.findall(r"`((?:\w+/)+[\w.]*)`", place)]
    assert len(paths) > 40
    assert not [path for path in paths if not any(ROOT.joinpath(top, path).exists() for top in ("", *TOPS))]


def test_who_carries_one_offset_is_where_the_page_says() -> None:
    """Each row's classes and functions are defined in its files, and each file defines one of them."""
    text = (ROOT / "docs" / "one-offset.md").read_text()
    rows = [
        re.findall(r"`([^`]+)`", cells) for cells in re.findall(r"^\| [^|]*\| ([^|]*\|[^|]*) \|$", text, re.MULTILINE)
    ]
    assert len(rows) > 20
    for row in rows:
        files = {name: (ROOT / name).read_text() for name in row if "/" in name}
        names = [name for name in row if "/" not in name]
        found = {(name, file) for file, source in files.items() for name in names if defines(source, name)}
        assert {name for name, _ in found} == set(names), row
        assert {file for _, file in found} == files.keys(), row
    for name, path in re.findall(r"`(\w+)`[^`.]* (?:in|\()\s*`([\w/]+\.py)`", text):
        assert defines((ROOT / path).read_text(), name), (name, path)


def defines(source: str, name: str) -> bool:
    """True if a module's ``source`` has a class or a function of that name at its top."""
    return re.search(rf"^(?:class|def) {name}\b", source, re.MULTILINE) is not None


def how_to_add() -> str:
    return (ROOT / "docs" / "code.md").read_text().partition("\n## How to add")[2]


def home(path: str) -> Path | None:
    """The file or folder that the page of the code means by ``path``."""
    places = [ROOT / path, *(ROOT / folder / path for folder in (*HOMES.values(), *TOPS))]
    return next((place for place in places if place.exists()), None)


def test_what_is_to_be_added_to_exists() -> None:
    paths = set(re.findall(r"`([a-z_]\w*/[\w./]*\w)`", how_to_add()))
    assert len(paths) > 40
    assert not {path for path in paths if home(path) is None}


def test_the_names_to_be_added_to_exist() -> None:
    """Each ``NAME`` that the page locates ``in path``, and what the steps of a store and an incident name in a file."""
    named = re.findall(r"`(\w+)` in `([\w./]+\.py)`", how_to_add())
    named += [(name, path) for path, name in re.findall(r"`([\w./]+\.py)`: [^.`]*`(\w+)`", how_to_add())]
    named += [(name, path) for path, name in re.findall(r"`([\w./]+\.py)`,? in the union `(\w+)`", how_to_add())]
    assert len(named) >= 8
    assert not [(name, path) for name, path in named if not re.search(rf"\b{name}\b", text_of(path))]


def text_of(path: str) -> str:
    found = home(path)
    return found.read_text() if found else ""


REPEATS = re.compile(r"_?(?:TRIES|ATTEMPTS|RETRIES)")
"""Names of constants that say how often something is tried."""


def repeats(tree: ast.AST) -> bool:
    """Whether a module says how often something is tried: a constant, or Airflow's ``retries``."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if REPEATS.fullmatch(name):
                    return True
            case ast.Dict(keys=keys) if any(isinstance(key, ast.Constant) and key.value == "retries" for key in keys):
                return True
            case ast.Call(func=func, keywords=keywords):
                counts = isinstance(func, ast.Attribute) and func.attr == "add"
                values = [word.value for word in keywords if word.arg == "retries" and not counts]
                if any(not isinstance(value, ast.Dict) and ast.unparse(value) != "False" for value in values):
                    return True
    return False


def test_everything_that_is_repeated_is_in_the_table_of_stores() -> None:
    section = (
        (ROOT / "docs" / "storage.md").read_text().partition("\n## How requests are repeated")[2].partition("\n## ")[0]
    )
    named = re.findall(r"`([\w/]+\.py)`", section)
    modules = {
        str(path.relative_to(ROOT))
        for folder in (*HOMES.values(), "dags")
        for path in (ROOT / folder).rglob("*.py")
        if "examples" not in path.parts and repeats(ast.parse(path.read_text()))
    }
    assert len(modules) > 12
    assert not {module for module in modules if not any(f"/{module}".endswith(f"/{name}") for name in named)}


def test_a_module_that_repeats_is_seen() -> None:
    assert repeats(ast.parse("_TRIES: Final = 3"))
    assert repeats(ast.parse("task(retries=3)"))
    assert repeats(ast.parse("dict(default_args={'retries': 2})"))
    assert not repeats(ast.parse("counters.add(retries=1)\npool(retries=False)\nTOTAL = 6"))


def test_the_sizes_of_a_fleet_are_those_that_the_program_computes() -> None:
    text = (ROOT / "docs" / "sizing.md").read_text()
    assert day(Fleet(), PerRun(), Rates()) in text
    for fleet in EXAMPLES.values():
        bill = bill_of(fleet)
        millions, dollars = sum(line.requests for line in bill) / 1e6, sum(line.dollars for line in bill)
        assert f"| {millions:,.{0 if millions > 2 else 1}f} | {dollars:,.0f} |" in text, fleet
