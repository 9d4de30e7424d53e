"""A request for erasure counts if another person, under another identity, has approved just these bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tidemark.erasure.asked import asked
from tidemark.erasure.requests import all_requests, approved, read_request
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.erasure import Approved, ErasureApproval, ErasureRequest, NotApproved
from tidemark.storage import ClusterStore
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now

CONTROL = ControlKeys("raw", "east")
REQUEST = asked([b"ada"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def put(store: Store, request: ErasureRequest = REQUEST, **approval: Any) -> str:
    """Put ``request``, and an approval if there is anything in it; the digest of the request."""
    store.put(CONTROL.erasure(request.id, "request"), request.to_bytes())
    sha256 = read_request(ClusterStore(store, CONTROL), request.id).sha256
    word: dict[str, Any] = {
        "id": request.id,
        "request_sha256": sha256,
        "by": "grace",
        "written_as": "key GRACE by grace@host",
        "at": utc_now(),
    }
    if approval:
        store.put(CONTROL.erasure(request.id, "approval"), ErasureApproval(**{**word, **approval}).to_bytes())
    return sha256


def test_two_people_make_a_request_count(store: Store) -> None:
    put(store, records=7)
    found = approved(ClusterStore(store, CONTROL), REQUEST.id)
    assert isinstance(found, Approved)
    assert (found.request, found.approval.records) == (REQUEST, 7)
    assert found.approval.by == "grace"


def test_a_request_without_approval_waits(store: Store) -> None:
    put(store)
    assert approved(ClusterStore(store, CONTROL), REQUEST.id) == NotApproved(REQUEST, None)


@pytest.mark.parametrize(
    ("approval", "objection"),
    [
        ({"by": "ada"}, "ada made the request, and another person must approve it"),
        ({"by": "  ADA "}, "ada made the request"),
        ({"by": "\uff21da"}, "ada made the request"),
        ({"written_as": REQUEST.written_as}, "its approval needs another identity"),
        ({"written_as": "key ADA by grace@another"}, "its approval needs another identity"),
        ({"written_as": "key ADA by x by y@another"}, "its approval needs another identity"),
        ({"request_sha256": "0" * 64}, "is of another content of the request"),
    ],
)
def test_one_person_does_not(store: Store, approval: dict[str, Any], objection: str) -> None:
    put(store, **approval)
    found = approved(ClusterStore(store, CONTROL), REQUEST.id)
    assert isinstance(found, NotApproved)
    assert objection in str(found.objection)


def test_a_name_with_other_spaces_is_the_same_persons(store: Store) -> None:
    put(store, REQUEST.model_copy(update={"by": "Ada Lovelace"}), by=" ada  lovelace\t")
    assert isinstance(approved(ClusterStore(store, CONTROL), REQUEST.id), NotApproved)


def test_without_a_principal_user_and_host_are_the_identity(store: Store) -> None:
    put(store, REQUEST.model_copy(update={"written_as": "ada@host"}), written_as="grace@host")
    assert isinstance(approved(ClusterStore(store, CONTROL), REQUEST.id), Approved)
    put(store, REQUEST.model_copy(update={"written_as": "ada@host"}), written_as="ada@host")
    assert isinstance(approved(ClusterStore(store, CONTROL), REQUEST.id), NotApproved)


def test_a_request_that_changes_after_its_approval_does_not_count(store: Store) -> None:
    put(store, records=None)
    assert isinstance(approved(ClusterStore(store, CONTROL), REQUEST.id), Approved)
    put(store, asked([b"bob"]))
    assert approved(ClusterStore(store, CONTROL), REQUEST.id)[1] == "the approval is of another content of the request"


def test_each_approval_has_its_own_digest(store: Store) -> None:
    put(store, records=7)
    first = approved(ClusterStore(store, CONTROL), REQUEST.id)
    put(store, records=8)
    second = approved(ClusterStore(store, CONTROL), REQUEST.id)
    assert isinstance(first, Approved)
    assert isinstance(second, Approved)
    assert first.sha256 != second.sha256


def test_what_lies_under_the_key_of_another_is_refused(store: Store) -> None:
    put(store, records=7)
    for part, rule in (("request", "is request east/0000000000000001, but its key"), ("approval", "approves request")):
        body = store.get(CONTROL.erasure(REQUEST.id, part)).body
        store.put(CONTROL.erasure(f"{2:016x}", "request"), asked([b"a"], number=2).to_bytes())
        store.put(CONTROL.erasure(f"{2:016x}", part), body)
        with pytest.raises(FormatError, match=rule):
            approved(ClusterStore(store, CONTROL), f"{2:016x}")
    other = ControlKeys("raw", "west")
    store.put(other.erasure(REQUEST.id, "request"), REQUEST.to_bytes())
    with pytest.raises(FormatError, match="its key names another"):
        approved(ClusterStore(store, other), REQUEST.id)


def test_all_requests_are_listed(store: Store) -> None:
    assert [*all_requests(ClusterStore(store, CONTROL))] == []
    put(store, records=7)
    put(store, asked([b"bob"], number=2))
    store.put(CONTROL.erasure(f"{3:016x}", "approval"), b"of no request")
    found = [*all_requests(ClusterStore(store, CONTROL))]
    assert [type(each) for each in found] == [Approved, NotApproved]
    store.put(f"{CONTROL.erasures}orders/request.json", b"")
    with pytest.raises(FormatError, match=r"^raw/_erasure/east/orders/request\.json: is no request for erasure"):
        [*all_requests(ClusterStore(store, CONTROL))]


def test_a_request_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        approved(ClusterStore(store, CONTROL), REQUEST.id)


@pytest.mark.parametrize(
    "change",
    [
        {"through": {}},
        {"through": {"orders": (), "clicks": ()}},
        {"topics": [{"topic": "orders"}, {"topic": "orders", "column": "customer_id"}]},
        {"topics": []},
        {"values": []},
        {"values": [{"digest": "ada@example.com", "probe": "00000000"}]},
    ],
)
def test_a_request_names_each_topic_once_and_its_ends(change: dict[str, Any]) -> None:
    good = REQUEST.model_dump(mode="json")
    assert ErasureRequest.model_validate(good) == REQUEST
    with pytest.raises(ValueError, match=r"each topic once|at least 1 item|should match pattern"):
        ErasureRequest.model_validate(good | change)


@pytest.mark.parametrize(
    ("due", "due_on", "near_from"),
    [
        (None, "2026-03-31", "2026-03-21"),
        ("2026-04-30", "2026-04-30", "2026-04-20"),
        ("2026-03-21", "2026-03-21", "2026-03-11"),
        ("2026-03-15", "2026-03-15", "2026-03-08"),
        ("2026-03-02", "2026-03-02", "2026-03-02"),
        ("2026-03-01", "2026-03-01", "2026-03-01"),
    ],
)
def test_people_are_warned_ten_days_before_or_after_half_of_a_shorter_time(
    due: str | None, due_on: str, near_from: str
) -> None:
    made = REQUEST.model_dump(mode="json") | {"at": "2026-03-01T23:00:00Z", "due": due}
    request = ErasureRequest.model_validate(made)
    assert (str(request.due_on), str(request.near_from)) == (due_on, near_from)
    if due is None:
        assert ErasureRequest.model_validate({name: made[name] for name in made.keys() - {"due"}}) == request


def test_some_requests_are_passed_over_unread(store: Store) -> None:
    put(store)
    store.put(CONTROL.erasure(f"{2:016x}", "request"), b"damaged")
    assert [*all_requests(ClusterStore(store, CONTROL), but={f"{2:016x}"})] == [NotApproved(REQUEST, None)]
