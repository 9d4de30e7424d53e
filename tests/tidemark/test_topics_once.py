"""A process parses each version of a topics file once, and sees whatever changes the values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark import topics
from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.topics import Deployment, load_topics

SCHEMA = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file whose topics name a schema, and a directory of schemas."""
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    for path in (tmp_path / "order.avsc", schemas / "7.avsc"):
        path.write_text(json.dumps(SCHEMA))
    path = tmp_path / "topics.yaml"
    lines = ["cluster: east", "raw: {url: 'file:///raw'}", "lake: 'file:///lake'", "topics:"]
    lines += ["  - {topic: orders, parser: {kind: avro, schema: order.avsc}}"]
    lines += ["  - {topic: bills, parser: {kind: avro, framing: confluent, schema: order.avsc, schemas: schemas}}"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were parsed."""
    texts: list[str] = []

    def noted(model: type[Any], text: str, *arguments: Any, **options: Any) -> Any:
        texts.append(text)
        return parse(model, text, *arguments, **options)

    monkeypatch.setattr(topics, "parse", noted)
    return texts


def test_a_file_that_has_not_changed_is_parsed_once(file: Path, parsed: list[str]) -> None:
    first = load_topics(file)
    assert load_topics(file) is first
    assert len(parsed) == 1


def replace_schema(path: Path) -> None:
    """Another file in its place, as an editor and a checkout write it."""
    fields = [*SCHEMA["fields"], {"name": "sum", "type": "int"}]
    (path.parent / "new").write_text(json.dumps(SCHEMA | {"fields": fields}))
    (path.parent / "new").replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the text": lambda file: file.write_text(file.read_text().replace("bills", "costs")),
    "a schema": lambda file: replace_schema(file.with_name("order.avsc")),
    "a schema of a directory": lambda file: replace_schema(file.parent / "schemas" / "7.avsc"),
    "a schema that is added": lambda file: (file.parent / "schemas" / "8.avsc").write_text(json.dumps(SCHEMA)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(file: Path, parsed: list[str], what: str) -> None:
    first = load_topics(file)
    CHANGES[what](file)
    changed = load_topics(file)
    assert changed != first
    assert changed == parse(Deployment, file.read_text(), str(file))
    assert load_topics(file) is changed


def test_a_variable_that_overrides_a_value_is_seen(
    file: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_topics(file).lake == "file:///lake"
    monkeypatch.setenv("TIDEMARK__LAKE", "file:///other")
    assert load_topics(file).lake == "file:///other"
    monkeypatch.delenv("TIDEMARK__LAKE")
    assert load_topics(file).lake == "file:///lake"


def test_what_is_refused_is_refused_again_and_nothing_of_it_is_kept(file: Path, parsed: list[str]) -> None:
    good = file.read_text()
    file.write_text(good + "  - {topic: orders}\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="appears twice"):
            load_topics(file)
    file.write_text(good)
    assert [topic.topic for topic in load_topics(file).topics] == ["orders", "bills"]
    (file.parent / "order.avsc").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topics(file)
