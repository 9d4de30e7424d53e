"""A job's options write a command line that is read as equal options."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tidemark.errors import ConfigError
from tidemark.jobs.options import JobOptions, Word
from tidemark.jobs.page import page
from tidemark.jobs.registry import JOBS, AuditOptions, CompactOptions, RebuildOptions, RetainOptions, VacuumOptions

HARD = ("", "-", "--", "--apply", "-h", "a b", "a=b", "'", '"', "é", "$HOME", "{{ ds }}", "*", "\n")
TRIES = 30


def some_text(rng: random.Random) -> str:
    return rng.choice([*HARD, "orders", "2026-11-20", f"word-{rng.randrange(100)}"])


def some_day(rng: random.Random) -> date:
    return date(2026, 1, 1) + timedelta(days=rng.randrange(700))


def value_of(word: Word, rng: random.Random) -> Any:
    """Some value of a field, right by itself."""
    if word.is_flag:
        return rng.random() < 0.5
    if word.choices:
        return rng.choice(word.choices)
    if word.metavar == "DATE":
        return some_day(rng)
    if word.metavar == "TIME":
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(microseconds=rng.randrange(1 << 40))
    if word.metavar in {"N", "VERSION"}:
        return rng.randrange(16)
    if word.metavar == "FILE":
        return Path(rng.choice(["topics.yaml", "/a b/topics.yaml", "-x", "topics=1"]))
    if word.flag == "--report":
        return f"{rng.getrandbits(64):016x}"
    if word.flag == "--lineage":
        return rng.choice(["events", "off", f"{rng.getrandbits(64):016x}"])
    return some_text(rng)


def some_options(job: type[JobOptions], rng: random.Random) -> JobOptions:
    """Random options of ``job`` that keep its rules about several."""
    while True:
        given = {
            name: [value_of(word, rng) for _ in range(rng.randint(1, 3))] if word.repeats else value_of(word, rng)
            for name, word in job.words().items()
            if word.field.is_required() or rng.random() < 0.4
        }
        with suppress(ConfigError):
            return job.of(**given)


@pytest.mark.parametrize("name", JOBS)
def test_the_words_that_options_write_are_read_as_equal_options(name: str, rng: random.Random) -> None:
    for _ in range(TRIES):
        options = some_options(JOBS[name], rng)
        words = options.arguments()
        assert JOBS[name].parse(words) == options, words
        told = {field: value for field, value in JOBS[name]._told(words).items() if value is not None}
        assert JOBS[name].of(**told) == options, f"typer reads {words} otherwise"


def test_options_that_differ_write_other_words(rng: random.Random) -> None:
    for _ in range(TRIES):
        one, other = some_options(AuditOptions, rng), some_options(AuditOptions, rng)
        assert (one == other) is (one.arguments() == other.arguments())


def test_defaults_are_not_written_unless_another_machine_has_others() -> None:
    vacuum = VacuumOptions.of(topics="topics.yaml", topic=["orders", "clicks"])
    assert vacuum.arguments() == ["--topics", "topics.yaml", "--topic", "orders", "--topic", "clicks"]
    retain = RetainOptions.of(topics="topics.yaml")
    assert retain.arguments() == ["--topics", "topics.yaml", "--by", retain.by]


@pytest.mark.parametrize(
    ("job", "arguments", "told"),
    [
        (AuditOptions, ["--from", "2026-11-20"], "--from, --to: both are needed"),
        (AuditOptions, ["--from", "2026-11-20", "--to", "2026-11-19"], "--from, --to: --to lies before --from"),
        (AuditOptions, ["--dt", "yesterday"], "--dt: 'yesterday' is not a date such as 2026-11-20"),
        (AuditOptions, ["--since", "2026-11-21T03:00:00"], "--since: '2026-11-21T03:00:00' has no time zone"),
        (AuditOptions, ["--lineage", "here"], "--lineage: 'here' must be events, off, or a place: 16 of 0-9 a-f"),
        (AuditOptions, ["--master", "local", "--remote", "sc://a"], "--master, --remote: only one"),
        (CompactOptions, ["--topic", "a", "--topic", "b", "--attempt", "7"], "--attempt: is of one topic"),
        (CompactOptions, ["--topic", "a", "--attempt", str(1 << 63)], "--attempt: '9223372036854775808' is not a"),
        (CompactOptions, ["--topic", "a", "--attempt", "-1"], "--attempt: '-1' is not a number from 0 to"),
        (RebuildOptions, ["--topic", "a"], "--from, --to: give both dates"),
        (RebuildOptions, ["--topic", "a", "--all", "--from", "2026-11-20"], "--from, --to: give both dates"),
        (
            RebuildOptions,
            ["--topic", "a", "--from", "2026-11-20", "--to", "2026-11-19"],
            "--from, --to: give both dates",
        ),
        (RebuildOptions, ["--topic", "a", "--all", "--report", "mine"], "--report: 'mine' is not the name of a report"),
        (
            RebuildOptions,
            ["--topic", "a", "--from", "2026-11-20", "--to", "2026-11-20", "--schema", "7"],
            "--schema: needs --all",
        ),
    ],
)
def test_what_breaks_a_rule_is_named_as_the_command_line_names_it(
    job: type[JobOptions], arguments: list[str], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        job.parse(["--topics", "topics.yaml", *arguments])
    assert f"{job.program()}: {told}" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--help"], 0, "Remove objects that no reader"),
        (["--topics", "t"], 2, "Missing option '--topic'"),
        (["--topics", "t", "--topic"], 2, "requires an argument"),
        (["--topics", "t", "--topic", "a", "--dry"], 2, "No such option"),
        (["--topics", "t", "--topic", "a", "b"], 2, "unexpected extra argument"),
    ],
)
def test_other_words_end_the_program(arguments: list[str], code: int, told: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        VacuumOptions.parse(arguments)
    assert ended.value.code == code
    shown = capsys.readouterr()
    assert told in (shown.err if code else shown.out)


def test_a_value_may_follow_an_equals_sign() -> None:
    options = VacuumOptions.parse(["--topics=t", "--topic=a", "--topic", "b=c", "--dry-run"])
    assert options == VacuumOptions.of(topics="t", topic=["a", "b=c"], dry_run=True)


def test_the_help_of_a_job_has_its_text_options_and_example(capsys: Any) -> None:
    for job in JOBS.values():
        with pytest.raises(SystemExit):
            job.parse(["--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.startswith(f"Usage: {job.program()} [OPTIONS]")
        assert all(word.flag in shown for word in job.words().values())
        assert f"spark/jobs/{job.program()}" in shown


def test_each_example_is_a_command_line_of_its_job() -> None:
    for job in JOBS.values():
        job.parse(job.example.split())


def test_each_job_is_a_program() -> None:
    assert {path.name for path in (ROOT / "spark" / "jobs").glob("*.py")} == {job.program() for job in JOBS.values()}


def test_the_page_is_current() -> None:
    """If it is not: ``python -m tidemark.jobs.page > docs/jobs.md``."""
    assert (ROOT / "docs" / "jobs.md").read_text() == page(JOBS.values())
