"""Fetch sessions, request by request; the scripted cluster keeps them in all other tests."""

from __future__ import annotations

from tests.uploader_agent.intake.scripted import ID, T
from uploader_agent.intake.fetch_connection import FetchSession, SessionRequest
from uploader_agent.intake.fetching import FetchedPart, Wanted

FIRST = Wanted(T, ID, 1, False, 7, 0, -1)
LATER = FIRST._replace(leader_epoch=1)


def begun() -> FetchSession:
    session = FetchSession()
    assert session.ask([FIRST]) == SessionRequest(0, 0, [FIRST], [])
    assert session.take(5, [FetchedPart(FIRST, high_watermark=7)]) == [FetchedPart(FIRST, high_watermark=7)]
    return session


def test_a_partition_that_is_left_out_is_answered_if_it_was_asked_for() -> None:
    session = begun()
    assert session.ask([LATER]) == SessionRequest(5, 1, [LATER], [])
    assert session.take(5, []) == [FetchedPart(LATER, high_watermark=7, first=True)]
    assert session.ask([LATER]) == SessionRequest(5, 2, [], [])
    assert session.take(5, []) == []


def test_the_same_list_again_asks_for_nothing_anew() -> None:
    session, wanted = begun(), [LATER]
    assert session.ask(wanted) == SessionRequest(5, 1, [LATER], [])
    session.take(5, [])
    assert session.ask(wanted) == SessionRequest(5, 2, [], [])
    session.lose()
    assert session.ask(wanted) == SessionRequest(5, 0, [LATER], []), "whole, to a broker that has dropped the session"


def test_a_throttled_answer_answers_nothing() -> None:
    """The broker may have refused the topic id, and told nobody."""
    session = begun()
    session.ask([LATER])
    assert session.take(5, [], throttled=True) == []
    assert session.ask([LATER]) == SessionRequest(5, 2, [], [])
    assert session.take(5, []) == [FetchedPart(LATER, high_watermark=7, first=True)]


def test_a_broker_without_room_for_a_session_gets_whole_requests() -> None:
    session = begun()
    session.ask([FIRST])
    session.take(0, [])
    assert session.ask([FIRST]) == SessionRequest(0, 0, [FIRST], [])
    session.take(6, [])
    session._epoch = (1 << 31) - 1
    session.ask([FIRST])
    session.take(6, [])
    assert session.ask([]) == SessionRequest(6, 1, [], [FIRST])


def test_a_session_that_is_lost_is_ended_by_the_next_request() -> None:
    session = begun()
    assert session.lose()
    assert session.ask([FIRST]) == SessionRequest(5, 0, [FIRST], [])
    assert not session.lose(), "an error about a whole request is not mended by another"
