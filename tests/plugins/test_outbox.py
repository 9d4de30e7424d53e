from __future__ import annotations

import pytest

from tests.plugins.world import World, commit, state
from tidemark.errors import FormatError, PreconditionFailed, TableTampered, UnknownOutcome
from tidemark.ledger import Published
from tidemark.store import Store
from tidemark.stored import utc_now
from tidemark.table import committed_ledger
from tidemark_airflow.continuity import settle
from tidemark_airflow.outbox import read_published, unpublished, update_published


def test_nothing_is_unpublished_in_an_empty_table(world: World) -> None:
    assert unpublished(world.lake(), committed_ledger(world.lake())) is None


def test_the_dates_of_all_commits_since_the_pointer_are_news(world: World) -> None:
    lake = world.lake()
    commit(lake, state(0, 1), dates=["2026-01-01"])
    settle(lake, n=1)
    commit(lake, state(0, 2), dates=["2026-01-03", "2026-01-02"])
    commit(lake, state(0, 3), dates=[])
    newest = commit(lake, state(0, 4), dates=["2026-01-03"])

    news = unpublished(lake, newest)

    assert news is not None
    assert (news.n, news.attempt) == (4, newest.attempt)
    assert news.dates == ("2026-01-02", "2026-01-03")
    settle(lake, n=news.n, attempt=news.attempt)
    assert unpublished(lake, newest) is None


def test_a_table_restored_behind_the_pointer_is_tampered_with(world: World) -> None:
    lake = world.lake()
    before = commit(lake, state(0, 1))
    commit(lake, state(0, 2))
    settle(lake, n=2)

    with pytest.raises(TableTampered, match="ledger 1 is committed, but 2 was published"):
        unpublished(lake, before)


def test_a_ledger_that_is_not_its_childs_parent_is_refused(world: World) -> None:
    lake = world.lake()
    first = commit(lake, state(0, 1))
    newest = commit(lake, state(0, 2))
    lake.store.put(lake.keys.ledger(1, first.attempt), first.model_copy(update={"rows": 9}).to_bytes())

    with pytest.raises(FormatError, match="SHA-256"):
        unpublished(lake, newest)


def test_the_pointer_never_moves_back(world: World) -> None:
    settle(world.lake(), n=5, attempt=55)
    settle(world.lake(), n=3, attempt=33)

    assert read_published(world.lake()).value.n == 5


def test_settling_nothing_writes_nothing(world: World) -> None:
    settle(world.lake())

    assert read_published(world.lake()).etag is None


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
    lake = world.lake()
    rival = Rival(lake.store, error, times=3)

    settle(lake._replace(store=rival), n=7, attempt=77)  # type: ignore[arg-type] # as much of a store as this uses

    found = read_published(lake).value
    assert (found.n, found.attempt) == (7, 77)
    assert found.settled == ("theirs" if error is PreconditionFailed else "")


def test_endless_conflicts_are_an_error(world: World) -> None:
    lake = world.lake()
    rival = Rival(lake.store, PreconditionFailed, times=1000)

    with pytest.raises(PreconditionFailed, match="8 times"):
        update_published(lake._replace(store=rival), lambda it: it)  # type: ignore[arg-type] # likewise
