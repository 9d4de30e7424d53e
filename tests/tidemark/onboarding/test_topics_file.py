from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.onboarding.onboard import checked, default_cluster, with_topic
from tidemark.topics import Deployment

BEGIN = """# What this deployment ingests.
cluster: east      # the default
raw: {url: 's3://raw/tidemark'}
lake: "s3://lake/tables"
"""
BLOCK = (
    BEGIN
    + """topics:
  # the oldest
  - topic: clicks   # of the web
    owner: 'web'

    retention: {table: 30d}
  - topic: orders
    parser:
      kind: json
      columns:
        - {name: id, type: int64}   # never null
      # in the topic
  # behind the last topic

# the end
defaults: {lateness: 2h}
"""
)
PATH = Path("topics.yaml")
TOPIC: dict[str, Any] = {
    "topic": "sensors",
    "parser": {
        "kind": "json",
        "columns": [{"name": "at", "type": "timestamp(ms)"}, {"name": "x", "type": "json", "path": ["a.b", "c"]}],
        "event_time": {"field": "at"},
    },
}


def added(text: str, topic: dict[str, Any] = TOPIC) -> str:
    after = with_topic(text, PATH, topic)
    before = parse(Deployment, text, str(PATH), {})
    found = checked(after, PATH, before, topic["topic"], "east")
    assert found.topic == topic["topic"]
    return after


def test_a_list_in_blocks_gets_lines_and_no_other_line_changes() -> None:
    after = added(BLOCK)
    lines = after.splitlines()
    first = lines.index("  - topic: sensors")
    assert lines[first - 1] == "      # in the topic"
    end = first + len(lines) - len(BLOCK.splitlines())
    assert "".join(f"{one}\n" for one in lines[:first] + lines[end:]) == BLOCK
    assert "        - {name: x, type: json, path: [a.b, c]}" in lines[first:end]


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + "topics:\n- topic: a\n- topic: b   # last",
        BEGIN + "topics:\n    -   topic: a\n        owner: x\n",
        BEGIN + "topics:\r\n  - topic: a\r\n",
        BEGIN + "topics:\n  - topic: a\n    owner: |-\n      x\n      # not a comment\ndefaults: {lateness: 2h}\n",
    ],
)
def test_it_takes_the_lists_own_indentation(text: str) -> None:
    after = added(text)
    assert all(line in after for line in text.splitlines())


@pytest.mark.parametrize("listed", ["topics: [{topic: clicks}]  # few\n", "topics: []\n"])
def test_a_list_in_flow_style_is_written_again_with_its_comments(listed: str) -> None:
    text = BEGIN + listed
    after = added(text)
    assert after.startswith("# What this deployment ingests.\ncluster: east      # the default\n")
    assert 'lake: "s3://lake/tables"' in after


@pytest.mark.parametrize("name", ["on", "1e3", "0x10", "2026-11-20", "12", "no", "1_000", "12.5", "null", "a.b"])
def test_names_that_yaml_would_take_for_something_else_are_quoted(name: str) -> None:
    added(BLOCK, {"topic": name})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BLOCK, "east"),
        ("defaults: {cluster: west}\ncluster: east\n", "west"),
        ("defaults:\ntopics: [{topic: a, cluster: east}]\n", None),
    ],
)
def test_the_cluster_of_topics_that_name_none(text: str, expected: str | None) -> None:
    assert default_cluster(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [("topics: {a: 1}\n", "must be a list of topics"), ("- a\n", "must be a mapping"), ("a: [\n", "not valid YAML")],
)
def test_a_file_that_cannot_be_edited_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_topic(text, PATH, TOPIC)


def test_what_the_file_may_not_say_is_refused() -> None:
    before = parse(Deployment, BLOCK, str(PATH), {})
    for wrong, told in (({"topic": "orders"}, "appears twice"), ({"topic": "x", "table": "orders"}, "appears twice")):
        with pytest.raises(ConfigError, match=told):
            checked(with_topic(BLOCK, PATH, wrong), PATH, before, "x", "east")


def test_a_change_of_something_else_is_refused() -> None:
    before = parse(Deployment, BLOCK, str(PATH), {})
    after = with_topic(BLOCK.replace("2h", "3h"), PATH, TOPIC)
    with pytest.raises(ConfigError, match="more than the new topic"):
        checked(after, PATH, before, "sensors", "east")
