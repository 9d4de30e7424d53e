"""A process parses each version of a topics file once, and a large one once for all processes of a user.

Whatever changes the values is seen.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark import topics, user_cache
from tidemark.concurrency import Lru
from tidemark.config import checked, mapping_in, parse
from tidemark.errors import ConfigError
from tidemark.topics import Deployment, TopicSettings, load_topics

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

    def noted(text: str, source: str) -> dict[str, Any]:
        texts.append(text)
        return mapping_in(text, source)

    monkeypatch.setattr(topics, "mapping_in", noted)
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


MANY = 300
"""Topics whose file is long enough to be kept for other processes."""


@pytest.fixture
def large(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with many more topics, of which the third last has a date of its own, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "cache"))
    lines = [f"  - {{topic: topic-{number}, owner: somebody, lateness: 2h, time_zone: UTC}}" for number in range(MANY)]
    dated = "  - {topic: dated, sane_timestamps: {earliest: 2020-02-29}, freshness: 60s}"
    registries = "registries: {main: {url: 'http://registry'}}\ndefaults: {lateness: 3h}\n"
    named = "  - {topic: named, parser: {kind: avro, framing: confluent, schema: order.avsc, registry: main}}"
    text = file.read_text().replace("topics:\n", f"{registries}topics:\n")
    file.write_text(text + "\n".join([*lines, dated, named, "  - {topic: last}"]) + "\n")
    return file


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Deployment]:
    """Loads a file as a process does that has loaded none."""

    def load(path: Path) -> Deployment:
        monkeypatch.setattr(topics, "_parsed", Lru(4))
        return load_topics(path)

    return load


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the topics that were made alone, from values that were kept."""
    names: list[str] = []

    def noted(model: type[Any], value: Any, *arguments: Any, **options: Any) -> Any:
        if model is TopicSettings:
            names.append(value["topic"])
        return checked(model, value, *arguments, **options)

    monkeypatch.setattr(topics, "checked", noted)
    return names


Another = Callable[[Path], Deployment]


def entries(file: Path) -> list[Path]:
    return [*(file.parent / "cache" / "tidemark" / "topics").iterdir()]


def test_another_process_makes_only_the_topic_that_it_wants(
    large: Path, parsed: list[str], made: list[str], another_process: Another
) -> None:
    first = another_process(large)
    made.clear()
    again = another_process(large)
    for topic in ("dated", "named", "orders"):
        assert again.topic(topic) == first.topic(topic)
    assert made == ["dated", "named", "orders"]
    assert len(parsed) == 1
    assert again.listed == tuple(first.listed)
    assert [topic.topic for topic in again.live_topics("east")] == ["dated"]
    with pytest.raises(ConfigError, match="did you mean dated"):
        again.topic("datd")
    assert made == ["dated", "named", "orders"]
    assert again == first
    assert again.topics[-2:] == first.topics[-2:]
    assert pickle.loads(pickle.dumps(again)) == first  # noqa: S301 - of this test itself


def test_a_short_file_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "cache"))
    load_topics(file)
    assert not (file.parent / "cache").exists()


@pytest.mark.parametrize("what", CHANGES)
def test_another_process_sees_a_change(large: Path, parsed: list[str], another_process: Another, what: str) -> None:
    first = another_process(large)
    CHANGES[what](large)
    changed = another_process(large)
    assert changed != first
    assert changed == parse(Deployment, large.read_text(), str(large))
    assert len(parsed) == 2
    assert another_process(large) == changed
    assert len(parsed) == 2


def test_another_process_is_told_the_error_of_another_topic(large: Path, another_process: Another) -> None:
    another_process(large)
    (large.parent / "order.avsc").write_text("no schema")
    with pytest.raises(ConfigError, match=r"topics.orders.parser.avro.schema.*not valid JSON"):
        another_process(large).topic("last")


def test_values_of_variables_are_not_kept(
    large: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, another_process: Another
) -> None:
    monkeypatch.setenv("TIDEMARK__STORE__ENDPOINT_URL", "https://of-one-process.example.com")
    monkeypatch.setenv("TIDEMARK__RAW__URL", "file:///of-one-process")
    assert another_process(large).store.endpoint_url == "https://of-one-process.example.com"
    [entry] = entries(large)
    assert "of-one-process" not in entry.read_text()
    monkeypatch.delenv("TIDEMARK__RAW__URL")
    assert another_process(large).raw.url == "file:///raw"
    monkeypatch.setenv("TIDEMARK__STORE__ENDPOINT_URL", "https://other.example.com")
    assert another_process(large).store.endpoint_url == "https://other.example.com"
    monkeypatch.delenv("TIDEMARK__STORE__ENDPOINT_URL")
    assert another_process(large).store.endpoint_url is None
    assert len(parsed) == 1


@pytest.mark.parametrize("name", ["TIDEMARK__DEFAULTS__LATENESS", "TIDEMARK__REGISTRIES__MAIN__URL"])
def test_a_variable_on_which_topics_depend_is_seen(
    large: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, another_process: Another, name: str
) -> None:
    first = another_process(large)
    monkeypatch.setenv(name, "4h" if "LATENESS" in name else "http://other")
    overridden = another_process(large)
    assert overridden != first
    assert overridden == parse(Deployment, large.read_text(), str(large))
    assert len(parsed) == 2
    assert len(entries(large)) == 1


def test_only_this_users_whole_file_is_read(large: Path, parsed: list[str], another_process: Another) -> None:
    another_process(large)
    [entry] = entries(large)
    assert (entry.stat().st_mode & 0o777, entry.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    entry.chmod(0o620)
    assert another_process(large).topic("last").topic == "last"
    assert len(parsed) == 2
    assert entry.stat().st_mode & 0o777 == 0o600
    entry.write_text(entry.read_text()[:-9])
    assert another_process(large).topic("last").topic == "last"
    assert len(parsed) == 3


def test_where_nothing_can_be_kept_each_process_parses_and_says_so(
    large: Path, parsed: list[str], another_process: Another, caplog: pytest.LogCaptureFixture
) -> None:
    (large.parent / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert another_process(large) == another_process(large)
    assert len(parsed) == 2
    assert "which cannot be written" in caplog.text


def test_a_schema_that_breaks_while_a_process_runs_is_told_with_its_topic(
    large: Path, another_process: Another
) -> None:
    another_process(large)
    loaded = another_process(large)
    (large.parent / "order.avsc").unlink()
    with pytest.raises(ConfigError, match=r"topics\.yaml: topics.orders.parser.avro.schema.*cannot be read"):
        loaded.topic("orders")


def test_the_files_of_former_versions_are_removed(large: Path, another_process: Another) -> None:
    text = large.read_text()
    for number in range(user_cache._MOST + 3):
        large.write_text(f"# {number}\n{text}")
        another_process(large)
    assert len(entries(large)) == user_cache._MOST


def test_a_hundred_problems_are_told_and_the_others_counted(large: Path) -> None:
    lines = [f"  - {{topic: more-{number}, table: bad name {number}}}" for number in range(250)]
    large.write_text(large.read_text() + "\n".join(lines) + "\n")
    with pytest.raises(ConfigError) as refused:
        load_topics(large)
    assert len(refused.value.problems) == 101
    assert refused.value.problems[-1] == ("", "has 150 more problems; correct these first")
