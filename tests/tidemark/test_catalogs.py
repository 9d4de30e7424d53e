"""``catalogs:`` of the topics file: what is refused, and which tables they list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.catalogs import catalog_table
from tidemark.errors import ConfigError
from tidemark.topics import Deployment, load_topics

REST = "{name: main, kind: rest, uri: 'https://catalog.example.com', namespace: kafka}"


def loaded(
    folder: Path, *catalogs: str, lake: str = "s3://lake/tables", topics: str = "[{topic: orders}]"
) -> Deployment:
    path = folder / "topics.yaml"
    lines = ["raw: {url: 's3://raw'}", f"lake: '{lake}'", "cluster: prod", "catalogs:"]
    path.write_text("\n".join([*lines, *(f"  - {one}" for one in catalogs), f"topics: {topics}"]))
    return load_topics(path)


def test_a_topic_is_listed_in_all_catalogs_unless_it_names_some(tmp_path: Path) -> None:
    topics = "[{topic: a}, {topic: b, catalogs: [other]}, {topic: c, catalogs: []}]"
    found = loaded(tmp_path, REST, "{name: other, kind: glue, namespace: kafka}", topics=topics)
    names = [[one.name for one in found.catalogs_of(topic)] for topic in found.topics]
    assert names == [["main", "other"], ["other"], []]


@pytest.mark.parametrize(
    ("catalog", "rule"),
    [
        ("{name: Main, kind: rest, uri: 'http://a', namespace: n}", "name"),
        ("{name: a, kind: rest, namespace: n}", "uri is required"),
        ("{name: a, kind: nessie, uri: 'http://a', namespace: n}", "kind"),
        ("{name: a, kind: sql, uri: 'postgresql://u:secret@h/db', namespace: n}", "must not have a password"),
        ("{name: a, kind: glue, namespace: n, properties: {token: abc}}", "token is secret"),
        ("{name: a, kind: glue, namespace: n, properties: {s3.secret-access-key: abc}}", "is secret"),
        ("{name: a, kind: glue, namespace: n, secrets: {token: 'not a name'}}", "must name a variable"),
        ("{name: a, kind: glue, namespace: 'n..m'}", "namespace"),
        ("{name: a, kind: glue, namespace: n, keep: 5d}", "keep: is no longer a setting"),
        ("{name: a, kind: glue, namespace: n, delta_suffix: ''}", "delta_suffix"),
        ("{name: a, kind: glue, namespace: n, delta_suffix: _Delta}", "delta_suffix"),
        (
            "{name: a, kind: sql, uri: 'sqlite:///a', namespace: n, delta_suffix: _delta}",
            "delta_suffix is for the kinds glue and hive",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, catalog: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as failure:
        loaded(tmp_path, catalog)
    assert "secret@" not in str(failure.value)
    assert "abc" not in str(failure.value)


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="main appears twice"):
        loaded(tmp_path, REST, REST)
    with pytest.raises(ConfigError, match="mine is not one of the catalogs of the file; there is main"):
        loaded(tmp_path, REST, topics="[{topic: a, catalogs: [mine]}]")
    with pytest.raises(ConfigError, match="two tables would have the name a_b there"):
        loaded(tmp_path, REST, topics="[{topic: a-b}, {topic: a.b}]")
    glue = "{name: other, kind: glue, namespace: kafka, delta_suffix: _delta}"
    with pytest.raises(ConfigError, match="two tables would have the name a, a_delta there"):
        loaded(tmp_path, glue, topics="[{topic: a}, {topic: A}]")
    with pytest.raises(ConfigError, match="two tables would have the name a_delta there"):
        loaded(tmp_path, REST, glue, topics="[{topic: A}, {topic: a_delta}]")
    with pytest.raises(ConfigError, match="engines do not know az:// URLs"):
        loaded(tmp_path, REST, lake="az://lake/tables")
    assert catalog_table("orders-eu.v2") == "orders_eu_v2"
