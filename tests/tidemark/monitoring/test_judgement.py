"""The judgement: which state is worse, and what follows from each."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from tests.tidemark.monitoring.test_health import NOW, TOPIC, entry, gap, led, ledger
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.ledger import Ledger
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.health import topic_health
from tidemark.monitoring.incidents import KINDS, IncidentKind
from tidemark.monitoring.judgement import STATES, WORDS, TopicState, exit_code, sentence, state_of, with_incidents

GAP = gap(100, 150)
TIERED = gap(100, 150, "remote_tier")
UNREAD = entry(uploaded=0, end=200).model_copy(update={"packs_known": False})


def held(known: Ledger) -> Ledger:
    opened = OpenTransaction(producer_id=9, producer_epoch=0, first_offset=100)
    partitions = tuple(one.model_copy(update={"held_by": (opened,)}) for one in known.partitions)
    return known.model_copy(update={"partitions": partitions})


@pytest.mark.parametrize(
    ("known", "said", "state"),
    [
        pytest.param(ledger(100), entry(uploaded=100), "complete", id="all has landed"),
        pytest.param(ledger(100), entry(uploaded=100, end=300), "current", id="the rest is in Kafka alone"),
        pytest.param(ledger(100), entry(uploaded=200), "behind", id="stored and not landed"),
        pytest.param(ledger(100), UNREAD, "behind", id="nobody knows what is stored"),
        pytest.param(ledger(200), UNREAD, "complete", id="nobody knows what is stored, and all has landed"),
        pytest.param(ledger(), entry(uploaded=1500), "behind", id="nothing has landed yet"),
        pytest.param(held(ledger(100)), entry(uploaded=200), "held", id="an open transaction"),
        pytest.param(ledger(100), entry(uploaded=100, gaps=(GAP,)), "gap", id="a gap above the ledger"),
        pytest.param(ledger(100, gaps=(GAP,)), entry(uploaded=200), "gap", id="a gap of the ledger"),
        pytest.param(ledger(150), entry(uploaded=150), "complete", id="a gap that is passed"),
        pytest.param(ledger(100), entry(uploaded=100, gaps=(TIERED,)), "attention", id="it waits, and nothing is lost"),
        pytest.param(ledger(100), entry(uploaded=100, gaps=(TIERED, gap(150, 160))), "gap", id="and something is"),
        pytest.param(
            ledger(150),
            entry(uploaded=150).model_copy(update={"remote_tier": ((0, 90),)}),
            "complete",
            id="history in Kafka's remote tier",
        ),
    ],
)
def test_what_the_store_knows(known: Ledger, said: IndexEntry, state: TopicState) -> None:
    assert state_of(topic_health(TOPIC, known, led(said), NOW)) == state


def test_what_nobody_has_told_is_unknown() -> None:
    assert state_of(topic_health(TOPIC, Ledger.genesis("east", "orders", "orders"), (), NOW)) == "unknown"


def test_evidence_that_does_not_add_up() -> None:
    health = topic_health(TOPIC, ledger(100), led(entry(uploaded=200)), NOW)
    assert state_of(health, equal=False) == "unequal"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", STATES)
def test_no_state_beside_an_open_incident_says_that_all_is_well(kind: IncidentKind, known: TopicState) -> None:
    found = with_incidents(known, [kind])
    assert WORDS[found].needs_person
    assert exit_code(found) == 1
    assert STATES.index(found) <= STATES.index(known)


def test_only_states_that_need_nobody_exit_with_0() -> None:
    assert [one for one in STATES if exit_code(one) == 0] == ["held", "behind", "current", "complete", "unknown"]


def test_a_sentence_has_the_counts() -> None:
    assert sentence("complete", missing=0, lag=0, quarantined=1200).startswith("Complete (1,200 in quarantine): every ")
    assert sentence("complete", missing=0, lag=0) == "Complete: every offset of the log has a class"
    assert sentence("behind", missing=0, lag=1500).endswith("; 1,500 offsets behind")
    assert sentence("gap", missing=1, lag=0).startswith("GAP: ")
    assert sentence("gap", missing=1, lag=0).endswith("; 1 offset missing")
    assert sentence("current", missing=0, lag=2, tiered=9).endswith(
        "; 9 offsets only in Kafka's remote tier; 2 offsets behind"
    )


def test_the_page_shows_the_same_words_in_the_same_order() -> None:
    script = (ROOT / "plugins/tidemark_airflow/web/static/states.js").read_text()
    table = script.partition("export const TOPIC = {")[2].partition("};")[0]
    shown = re.findall(r'(\w+): \["(.+?)", "(.+?)", "(.+?)"\]', table)
    assert shown == [(state, *WORDS[state][:3]) for state in STATES]


def test_the_documentation_explains_each_state() -> None:
    text = (ROOT / "docs/page.md").read_text()
    told = re.findall(r"^\| (\S) (\w+) \|", text, re.MULTILINE)
    assert told == [(WORDS[state].sign, state) for state in STATES]
