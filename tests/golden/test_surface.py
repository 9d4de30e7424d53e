"""A change of the public surface is noticed, and is described in the CHANGELOG."""

from __future__ import annotations

import re

import pytest

from tests.golden import HERE, RELEASED
from tests.golden.surface import FILES, PRESENT, changes, read, section_above, surface, text, unmentioned
from tests.support.paths import ROOT
from tidemark.config import Settings, successor
from tidemark.topics import OF_ROWS, Deployment
from uploader_agent.settings import AgentSettings

BEFORE = {"commands": {"tidemark files": "command", "tidemark files --dt": "list", "tidemark files TOPIC": "str"}}
NOW = {
    "commands": {"tidemark files": "command", "tidemark files --dt": "list repeatable", "tidemark files --all": "bool"}
}


def test_the_listing_is_that_of_this_tree() -> None:
    """If it is not: `make surface` writes it; the difference shows what has changed."""
    assert PRESENT.read_text() == text(surface())


@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize("file", FILES)
def test_what_has_changed_since_a_release_is_in_the_changelog(version: str, file: str) -> None:
    """If it is not: describe it there; or, before the version is tagged, copy the listing to its folder."""
    changed = changes(read(HERE / version / file), read(HERE / file))
    notes = section_above((ROOT / "CHANGELOG.md").read_text(), version)
    assert unmentioned(changed, notes) == []


@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize(("file", "model"), [("agent file", AgentSettings), ("topics file", Deployment)])
def test_a_key_that_is_gone_says_what_takes_its_place(version: str, file: str, model: type[Settings]) -> None:
    """If it does not: add it to `removed` of the settings that had it.

    A key of a section that is a mere value now, such as the name of a registry, is refused with that section.
    """
    before, now = (read(folder / PRESENT.name)[file] for folder in (HERE / version, HERE))
    gone = sorted(key for key in before.keys() - now.keys() if not key.endswith("[]"))
    values = tuple(f"{key.removesuffix('{}')}{rest}" for key in now if now[key].startswith("string") for rest in ".{")
    keys = [key for key in gone if not key.startswith(values) and not any(o.startswith(f"{key}.") for o in gone)]
    written = {key: re.sub(r"<.*?>", "", key.replace("[]", ".0").replace("{}", ".name")) for key in keys}
    assert [key for key in keys if successor(model, written[key]) is None] == []


@pytest.mark.parametrize("version", RELEASED)
def test_no_default_that_rows_depend_on_has_changed(version: str) -> None:
    """The digest of settings has what differs from the defaults: see `Settings.digest_of`. It lacks what is gone."""
    of_rows = re.compile(rf"topics\[\]\.(?:{'|'.join(OF_ROWS)})\b")
    before, now = (read(folder / PRESENT.name)["topics file"] for folder in (HERE / version, HERE))
    defaults = {
        name: default
        for name, text in before.items()
        if of_rows.match(name) and (default := text.partition(" = ")[2]) and not default.startswith("{")
    }
    kept = defaults.keys() & now.keys()
    assert {"topics[].limits.batch", "topics[].parser<json>.misfits"} < kept
    assert {name: now[name].partition(" = ")[2] for name in kept} == {name: defaults[name] for name in kept}


def test_a_change_is_an_entry_that_is_new_gone_or_different() -> None:
    assert changes(BEFORE, NOW) == {
        "commands: tidemark files --all": "was absent, is bool",
        "commands: tidemark files --dt": "was list, is list repeatable",
        "commands: tidemark files TOPIC": "was str, is absent",
    }
    assert changes(BEFORE, BEFORE) == {}
    assert list(changes({}, BEFORE)) == [f"commands: {name}" for name in sorted(BEFORE["commands"])]


@pytest.mark.parametrize(
    ("notes", "missing"),
    [
        ("* `tidemark files --all`; `--dt` may be repeated, and a `TOPIC` is not needed.", []),
        ("* `tidemark files --all`; `--dt` may be repeated, and a topic is not needed.", ["TOPIC"]),
        ("* tidemark files --all; `--dt` may be repeated; `TOPIC`.", ["--all"]),
        ("* `--all-of-it`, `--dtd`, `TOPICS`", ["--all", "--dt", "TOPIC"]),
        ("", ["--all", "--dt", "TOPIC"]),
    ],
)
def test_each_change_is_named_between_backquotes(notes: str, missing: list[str]) -> None:
    messages = unmentioned(changes(BEFORE, NOW), notes)
    assert [message.partition("name `")[2].partition("`")[0] for message in messages] == missing


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("topics file: topics[].parser<avro>.event_time", "event_time"),
        ("topics file: bootstrap{}", "bootstrap"),
        ("metrics: tidemark_agent_gaps", "tidemark_agent_gaps"),
        ("commands: tidemark backfill --wait/--no-wait", "--no-wait"),
    ],
)
def test_the_word_to_name_is_the_entrys_own(name: str, word: str) -> None:
    assert unmentioned({name: ""}, f"* `{word}`") == []
    assert len(unmentioned({name: ""}, "* `tidemark`")) == 1


def test_only_sections_above_a_release_count() -> None:
    changelog = "# Changes\n\n## Unreleased\n\n* `a`\n\n## 1.0.0 - 2026-11-26\n\n* `b`\n"
    assert "`a`" in section_above(changelog, "1.0")
    assert "`b`" not in section_above(changelog, "1.0")
    with pytest.raises(AssertionError, match=r"no section of 1\.1"):
        section_above(changelog, "1.1")
