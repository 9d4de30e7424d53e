from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.plugins.world import World, commit, state
from tidemark.errors import FormatError, PreconditionFailed, TableTampered, UnknownOutcome
from tidemark.formats.table.ledger import DateState, Published
from tidemark.store import Store
from tidemark.table.delta_table import committed_ledger
from tidemark.timestamps import utc_now
from tidemark_airflow.assets.outbox import Commit, mark_planned, move, read_published, unpublished, update_published

FINAL = DateState(rows=5, state="final", closed_at=datetime(2026, 1, 3, tzinfo=UTC))
REOPENED = FINAL.model_copy(update={"state": "reopened"})
FINAL_AGAIN = FINAL.model_copy(update={"closed_at": datetime(2026, 1, 4, tzinfo=UTC)})
INCOMPLETE = FINAL.model_copy(update={"state": "final_incomplete"})


def test_nothing_is_unpublished_in_an_empty_table(world: World) -> None:
    assert unpublished(world.table(), committed_ledger(world.table()), ()) is None
    assert read_published(world.table()).etag is None


def test_the_dates_of_all_commits_since_the_pointer_are_news(world: World) -> None:
    table = world.table()
    move(table, Commit.of(commit(table, state(0, 1), dates=["2026-01-01"])))
    commit(table, state(0, 2), dates=["2026-01-03", "2026-01-02"])
    commit(table, state(0, 3), dates=[])
    newest = commit(table, state(0, 4), dates=["2026-01-03"])

    news = unpublished(table, newest, ())

    assert news is not None
    assert news.commit == Commit(4, newest.attempt)
    assert news.dates == ("2026-01-02", "2026-01-03")


def test_the_pointer_waits_for_the_proof(world: World) -> None:
    table = world.table()
    first = commit(table, state(0, 1), dates=["2026-01-01"])
    for _ in range(2):
        news = unpublished(table, first, ())
        assert news is not None
        assert news.dates == ("2026-01-01",)
        assert read_published(table).value.n == 0

    assert unpublished(table, first, {Commit.of(first)}) is None
    assert read_published(table).value.n == 1
    assert unpublished(table, first, ()) is None


def test_a_proof_of_an_older_commit_leaves_what_came_after_it(world: World) -> None:
    table = world.table()
    first = commit(table, state(0, 1), dates=["2026-01-01"])
    second = commit(table, state(0, 2), dates=["2026-01-02"])

    news = unpublished(table, second, {Commit.of(first)})

    assert news is not None
    assert news.dates == ("2026-01-02",)
    assert read_published(table).value.n == 1


def test_an_event_of_another_table_of_the_same_name_proves_nothing(world: World) -> None:
    table = world.table()
    first = commit(table, state(0, 1), dates=["2026-01-01"])

    assert unpublished(table, first, {Commit(1, first.attempt + 1), Commit(500, 7)}) is not None
    assert read_published(table).value.n == 0


def test_a_commit_that_no_event_tells_of_needs_no_proof(world: World) -> None:
    table = world.table()
    move(table, Commit.of(commit(table, state(0, 1), dates=["2026-01-01"])))
    newest = commit(table, state(0, 1), dates=[])

    assert unpublished(table, newest, ()) is None
    assert read_published(table).value.n == 2


@pytest.mark.parametrize(
    ("before", "after", "dates", "closed"),
    [
        pytest.param(DateState(rows=5), FINAL, [], True, id="closes"),
        pytest.param(DateState(rows=5), INCOMPLETE, [], True, id="closes incomplete"),
        pytest.param(INCOMPLETE, FINAL, [], True, id="complete after all"),
        pytest.param(FINAL, FINAL, [], False, id="was closed"),
        pytest.param(FINAL, FINAL, ["2026-01-01"], True, id="made again while closed"),
        pytest.param(FINAL, REOPENED, ["2026-01-01"], False, id="reopens"),
        pytest.param(FINAL, FINAL_AGAIN, [], True, id="reopened and closed again"),
    ],
)
def test_which_dates_have_closed(
    world: World, before: DateState, after: DateState, dates: list[str], closed: bool
) -> None:
    table = world.table()
    move(table, Commit.of(commit(table, state(0, 1), states={"2026-01-01": before})))
    newest = commit(table, state(0, 2), dates=dates, states={"2026-01-01": after})

    news = unpublished(table, newest, ())

    assert (news.closed if news else {}) == ({"2026-01-01": after} if closed else {})


def test_a_date_that_closed_and_reopened_before_anyone_was_told_is_not_closed(world: World) -> None:
    table = world.table()
    commit(table, state(0, 1), states={"2026-01-01": FINAL})
    newest = commit(table, state(0, 2), states={"2026-01-01": REOPENED})

    news = unpublished(table, newest, ())

    assert news is not None
    assert news.closed == {}
    assert news.dates == ("2026-01-01",)


def test_a_table_restored_behind_the_pointer_is_tampered_with(world: World) -> None:
    table = world.table()
    before = commit(table, state(0, 1))
    move(table, Commit.of(commit(table, state(0, 2))))

    with pytest.raises(TableTampered, match="ledger 1 is committed, but 2 was published"):
        unpublished(table, before, ())


def test_a_ledger_that_is_not_its_childs_parent_is_refused(world: World) -> None:
    table = world.table()
    first = commit(table, state(0, 1))
    newest = commit(table, state(0, 2))
    table.store.put(table.keys.ledger(1, first.attempt), first.model_copy(update={"rows": 9}).to_bytes())

    with pytest.raises(FormatError, match="SHA-256"):
        unpublished(table, newest, ())


def test_the_pointer_never_moves_back(world: World) -> None:
    move(world.table(), Commit(5, 55))
    move(world.table(), Commit(3, 33))

    assert read_published(world.table()).value.n == 5


def test_what_is_settled_leaves_the_pointer_where_it_is(world: World) -> None:
    move(world.table(), Commit(5, 55))
    mark_planned(world.table(), "digest")

    found = read_published(world.table()).value
    assert (found.n, found.settled) == (5, "digest")
    assert found.settled_at is not None


class Rival:
    """A store in which somebody else changes the pointer just before a write, or the reply is lost just after."""

    def __init__(self, store: Store, error: type[PreconditionFailed | UnknownOutcome], times: int) -> None:
        self.url = store.url
        self.get = store.get
        self._store = store
        self._error = error
        self.times = times

    def put(self, key: str, body: bytes, *, if_match: str | None, if_none_match: bool) -> str:
        if self.times == 0:
            return self._store.put(key, body, if_match=if_match, if_none_match=if_none_match)
        self.times -= 1
        if self._error is UnknownOutcome:
            self._store.put(key, body, if_match=if_match, if_none_match=if_none_match)
        else:
            there = Published(n=self.times + 1, settled="theirs", at=utc_now())
            self._store.put(key, there.to_bytes())
        raise self._error(key, "as planned")


@pytest.mark.parametrize("error", [PreconditionFailed, UnknownOutcome])
def test_a_change_is_made_again_after_a_conflict(
    world: World, error: type[PreconditionFailed | UnknownOutcome]
) -> None:
    table = world.table()
    rival = Rival(table.store, error, times=3)

    move(table._replace(store=rival), Commit(7, 77))  # type: ignore[arg-type] # as much of a store as this uses

    found = read_published(table).value
    assert (found.n, found.attempt) == (7, 77)
    assert found.settled == ("theirs" if error is PreconditionFailed else "")


def test_endless_conflicts_are_an_error(world: World) -> None:
    table = world.table()
    rival = Rival(table.store, PreconditionFailed, times=1000)

    with pytest.raises(PreconditionFailed, match="8 times"):
        update_published(table._replace(store=rival), lambda it: it.model_copy(update={"n": 9}))  # type: ignore[arg-type] # likewise
