from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from tidemark.backfill.request import (
    BY_DATE,
    LONGEST_REASON,
    MODES,
    MOST_DAYS,
    MOST_TOPICS,
    BackfillRequest,
    check_request,
    report_name,
)
from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.topics import Deployment

TODAY = date(2026, 11, 21)
FORM: dict[str, Any] = {"topics": ["east/orders"], "from_date": "2026-01-30", "to_date": "2026-02-01"}
TOPICS = "raw: {url: 's3://raw'}\nlake: s3://lake\ncluster: east\ntopics: [{topic: orders}, {topic: clicks}]"
DEPLOYMENT = parse(Deployment, TOPICS, "topics.yaml", {})


def checked(**change: Any) -> list[BackfillRequest]:
    return check_request(DEPLOYMENT, FORM | change, today=TODAY, by="ada", run="manual__1")


def problems(**change: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        checked(**change)
    assert str(raised.value).startswith("the backfill's form: ")
    return dict(raised.value.problems)


def test_a_form_is_a_request_for_each_topic() -> None:
    orders, clicks = checked(topics=["east/orders", "east/clicks", "east/orders"], max_gib=2)

    assert (orders.label, clicks.label) == ("east/orders", "east/clicks")
    assert orders.dates == ["2026-01-30", "2026-01-31", "2026-02-01"]
    assert (orders.mode, orders.dry_run, orders.extend) == ("rebuild", True, False)
    assert (orders.max_bytes, orders.approve_above) == (2 << 30, 100 << 30)
    assert (orders.by, orders.run) == ("ada", "manual__1")
    assert BackfillRequest.from_bytes(orders.to_bytes(), "key") == orders


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        pytest.param({"topics": ["east/nope"]}, "topics", "'east/nope' is not in the topics file; "),
        pytest.param({"topics": ["west/orders"]}, "topics", "'west/orders' is not in", id="cluster"),
        pytest.param({"topics": ["orders"]}, "topics", "'orders' must be cluster/topic", id="no cluster"),
        pytest.param({"topics": ["../../etc/passwd"]}, "topics", "is not in the topics file", id="a path"),
        pytest.param({"topics": []}, "topics", "choose at least one", id="no topic"),
        pytest.param({"topics": "east/orders"}, "topics", "choose at least one", id="no list"),
        pytest.param({"topics": [1]}, "topics", "choose at least one", id="no text"),
        pytest.param({"topics": ["x"] * (MOST_TOPICS + 1)}, "topics", "start several runs", id="too many topics"),
        pytest.param({"from_date": "2026-02-30"}, "from_date", "'2026-02-30' is not a date", id="no such day"),
        pytest.param({"from_date": "$(reboot)"}, "from_date", "is not a date; give one such as", id="no date"),
        pytest.param({"from_date": None}, "from_date", "is missing; give one such as", id="missing"),
        pytest.param({"to_date": ""}, "to_date", "is missing", id="empty"),
        pytest.param({"to_date": "2026-01-29"}, "to_date", "is before from_date, 2026-01-30; swap", id="backwards"),
        pytest.param({"from_date": "2020-01-01"}, "to_date", f"are more than {MOST_DAYS}", id="too many days"),
        pytest.param(
            {"from_date": "2026-11-23", "to_date": "2026-11-23"},
            "from_date",
            "is in the future (today is 20",
            id="future",
        ),
        pytest.param(
            {"mode": "erase"}, "mode", "must be one of rebuild, compare, missing, replay, repair, schema", id="mode"
        ),
        pytest.param({"mode": "schema"}, "schema_version", "is needed in mode schema", id="no version"),
        pytest.param({"schema_version": 7}, "schema_version", "is for mode schema alone", id="version of no schema"),
        pytest.param({"mode": "schema", "schema_version": True}, "schema_version", "is needed", id="a flag"),
        pytest.param(
            {"mode": "schema", "schema_version": 7, "topics": ["east/orders", "east/clicks"]},
            "topics",
            "must be one in mode schema",
            id="schema of two topics",
        ),
        pytest.param({"mode": "missing", "extend": True}, "extend", "cannot be with mode missing", id="extend"),
        pytest.param({"mode": "repair", "extend": True}, "extend", "cannot be with mode repair", id="extended repair"),
        pytest.param({"exchange": "at once"}, "exchange", "must be one of together, by-date", id="exchange"),
        *(
            pytest.param({"exchange": "by-date", "mode": mode}, "exchange", "only in mode rebuild or missing", id=mode)
            for mode in MODES
            if mode not in {*BY_DATE, "schema"}
        ),
        pytest.param({"max_gib": 0}, "max_gib", "must be a whole number of GiB, 1 or more", id="zero"),
        pytest.param({"max_gib": "many"}, "max_gib", "must be a whole number", id="no number"),
        pytest.param({"max_gib": True}, "max_gib", "must be a whole number", id="a flag"),
        pytest.param({"approve_above_gib": -1}, "approve_above_gib", "0 or more", id="negative"),
        pytest.param({"approve_above_gib": 101}, "approve_above_gib", "asks for approval above 100", id="approval"),
        pytest.param({"dry_run": "false"}, "dry_run", "'false' must be true or false", id="no flag"),
        pytest.param({"dry_run": False}, "reason", "is needed for what rewrites a table", id="no reason"),
        pytest.param({"dry_run": False, "reason": "  "}, "reason", "is needed", id="blank reason"),
        pytest.param({"reason": "x" * (LONGEST_REASON + 1)}, "reason", "characters at most", id="long reason"),
        pytest.param({"reason": "a\nb"}, "reason", "one line of text", id="two lines"),
        pytest.param({"reason": 7}, "reason", "one line of text", id="no reason's type"),
        pytest.param({"configuration": "0" * 16}, "configuration", "is not that of east/orders", id="settings"),
        pytest.param({"toppics": ["east/orders"]}, "toppics", "form; did you mean topics?", id="typo"),
        pytest.param({"application_args": ["--all"]}, "application_args", "is not a field", id="an argument"),
    ],
)
def test_each_rule_names_its_field_and_what_to_do(change: dict[str, Any], field: str, rule: str) -> None:
    found = problems(**change)

    assert list(found) == [field]
    assert rule in found[field]


def test_all_that_is_wrong_is_told_at_once() -> None:
    found = problems(topics=[], from_date="x", mode="erase", max_gib=0, dry_run=None, surprise=1)

    assert set(found) == {"topics", "from_date", "mode", "max_gib", "dry_run", "surprise"}


def test_the_settings_that_are_asked_for_must_be_those_of_the_topics_file() -> None:
    assert checked(configuration=DEPLOYMENT.topics[0].digest)
    assert "`tidemark config check`" in problems(configuration=DEPLOYMENT.topics[1].digest)["configuration"]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_mode_does(mode: str) -> None:
    version = {"schema_version": 7} if mode == "schema" else {}
    [wet] = checked(mode=mode, dry_run=False, reason="INC-7", **version)
    [dry] = checked(mode=mode, **version)

    assert wet.rewrites is (mode != "compare")
    assert not dry.rewrites
    assert wet.compares is (mode in {"rebuild", "compare", "schema"})


def test_a_comparison_needs_no_reason_and_a_rebuild_may_go_without_differences() -> None:
    assert checked(mode="compare", dry_run=False)[0].compares
    assert not checked(differences=False)[0].compares


def test_a_reports_name_is_no_part_of_a_runs() -> None:
    assert report_name("manual__1") == report_name("manual__1") != report_name("manual__2")
    assert len(report_name("../../x")) == 16


def test_the_form_needs_no_more_than_topics_and_dates() -> None:
    assert check_request(DEPLOYMENT, FORM, today=TODAY)[0].by == ""
