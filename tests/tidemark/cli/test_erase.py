"""``tidemark erase``, as a program: nobody sees a value, two people decide, and lost replies do no harm."""

from __future__ import annotations

import getpass
import io
import json
import socket
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World
from tests.support.raw_builder import RawBuilder
from tests.tidemark.cli.test_cli import call
from tests.tidemark.erasure.asked import asked, tell
from tests.tidemark.kafka_log.build import simple
from tidemark.cli.erase import NOT_COVERED
from tidemark.erasure import requests as erasure_requests
from tidemark.erasure.reports import RawReport, Remaining
from tidemark.erasure.requests import all_requests, approved, read_request
from tidemark.erasure.secret import VARIABLE, Secret
from tidemark.errors import UnknownOutcome
from tidemark.formats.raw.erasure import Approved, ErasureRequest
from tidemark.store.local import LocalStore
from tidemark.timestamps import utc_now

SECRET = "a-secret-of-the-tests-of-forty-characters"
VALUE = "Ada.Lovelace@example.com"
JSON = ("--output", "json")
PARTS = ("approval", "request", "withdrawal")
TYPES = {"customer_id": "int64", "email": "string", "country": "string", "price": "double"}
PARSER = (
    f"parser: {{kind: json, columns: {json.dumps([{'name': name, 'type': kind} for name, kind in TYPES.items()])}}}",
    "partition_by: [dt, {column: country, values: [AT, DE]}]",
)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two partitions, of which one has landed as a whole."""
    world = World(tmp_path, *PARSER)
    world.raw.segment([simple(0), simple(3)])
    world.land()
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    return world


@pytest.fixture
def folder(world: World) -> erasure_requests.ErasureFolder:
    return erasure_requests.ErasureFolder.of(world.table.deployment, "east")


class Person:
    """Somebody who uses the command, under an identity of the store."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._file = capsys, world.topics_file
        self.said: list[str] = []

    def __call__(self, *arguments: str | Path, text: str | bytes = b"") -> tuple[int, str, str]:
        """(exit code, output, errors) of ``tidemark erase ARGUMENTS``, with ``text`` as standard input."""
        with pytest.MonkeyPatch.context() as patch:
            body = text if isinstance(text, bytes) else text.encode()
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
            result = call(self._capsys, "erase", *arguments, "--topics", self._file)
        self.said += result[1:]
        return result

    def request(self, *arguments: str | Path, text: str | bytes = f"{VALUE}\n", by: str = "ada") -> tuple[int, Any]:
        """(exit code, the answer or the errors) of a request; ``orders`` unless another topic is named."""
        topic = () if "--topic" in arguments else ("--topic", "orders")
        code, output, errors = self("request", *topic, *arguments, "--by", by, "--reason", "DSR-1182", *JSON, text=text)
        return code, json.loads(output) if code == 0 else errors

    def approve(self, name: str, *arguments: str, by: str = "grace") -> tuple[int, Any]:
        """(exit code, the answer or the errors) of an approval."""
        code, output, errors = self("approve", name, "--by", by, "-y", *arguments, *JSON)
        return code, json.loads(output) if code == 0 else errors


@pytest.fixture
def person(world: World, capsys: pytest.CaptureFixture[str]) -> Person:
    return Person(world, capsys)


@pytest.fixture
def identities(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The identity of the next command; the first element counts."""
    found = ["key ADA by ada@host"]
    monkeypatch.setattr(erasure_requests, "identity", lambda *_: found[0])
    return found


def read(folder: erasure_requests.ErasureFolder, name: str) -> ErasureRequest:
    found = approved(folder.cluster, name)
    return found.request


def test_a_request_has_digests_and_the_ends(
    person: Person, folder: erasure_requests.ErasureFolder, world: World
) -> None:
    code, answer = person.request(text=f"{VALUE}\r\nbob\n{VALUE}\n")
    assert (code, answer["values"], answer["duplicates"], answer["reason"]) == (0, 2, 1, "DSR-1182")
    request = read(folder, answer["id"])
    secret = Secret(SECRET)
    values = {(secret.digest(value), f"{secret.probe(value):08x}") for value in (VALUE.encode(), b"bob")}
    assert {(value.digest, value.probe) for value in request.values} == values
    assert [value.digest for value in request.values] == sorted(value.digest for value in request.values)
    assert request.secret == answer["secret"] == secret.fingerprint
    assert request.through == {"orders": ((0, 0, 6), (0, 1, 3))}
    assert answer["through"] == {"orders": [[0, 0, 6], [0, 1, 3]]}
    assert request.written_as == f"{getpass.getuser()}@{socket.gethostname()}"
    assert [(each.topic, each.column, each.confluent) for each in request.topics] == [("orders", "kafka_key", False)]


def test_the_end_is_what_kafka_has_committed(
    person: Person, folder: erasure_requests.ErasureFolder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in the active segment are the person's as well, though nothing of it is stored yet."""
    real = RawBuilder._publish

    def ahead(builder: RawBuilder, *arguments: Any) -> Any:
        entry = real(builder, *arguments)
        return entry.model_copy(update={"high_watermark": entry.high_watermark + 100, "log_end_offset": 1000})

    monkeypatch.setattr(RawBuilder, "_publish", ahead)
    world.raw.publish()
    assert read(folder, person.request()[1]["id"]).through == {"orders": ((0, 0, 106), (0, 1, 103))}


def test_a_partition_is_covered_without_its_brokers_index(person: Person, world: World) -> None:
    """By ``offset.wm``; what has landed, by the ledger."""
    world.raw.segment([simple(6)])
    world.raw.publish()
    world.raw.store.delete("_watermarks/east/1.json")
    assert person.request()[1]["through"] == {"orders": [[0, 0, 9]]}
    world.raw.store.delete(world.raw.keys().watermark)
    assert person.request()[1]["through"] == {"orders": [[0, 0, 6]]}


def test_all_incarnations_are_covered(person: Person, folder: erasure_requests.ErasureFolder, world: World) -> None:
    world.raw.recreate("B" * 22)
    world.raw.segment([simple(0)])
    world.raw.publish()
    assert read(folder, person.request()[1]["id"]).through == {"orders": ((0, 0, 6), (0, 1, 3), (1, 0, 3))}


def test_the_first_secret_is_used(
    person: Person, folder: erasure_requests.ErasureFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = "n" * 40
    monkeypatch.setenv(VARIABLE, f"{newer} {SECRET}")
    _, answer = person.request()
    assert read(folder, answer["id"]).values[0].digest == Secret(newer).digest(VALUE.encode())


@pytest.mark.parametrize(("value", "rule"), [("", "is not set"), (SECRET[:31], "is too short")])
def test_without_a_secret_nothing_is_written(
    person: Person, world: World, monkeypatch: pytest.MonkeyPatch, value: str, rule: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    code, errors = person.request()
    assert (code, f"{VARIABLE}: " in errors, rule in errors) == (2, True, True)
    assert not value or value not in errors
    assert stored(world) == []


def stored(world: World) -> list[str]:
    return sorted(info.key for info in world.raw.store.list("_erasure/"))


def test_values_come_from_a_file_in_any_form(
    person: Person, folder: erasure_requests.ErasureFolder, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"00aa\nff")
    _, answer = person.request(keys, "--hex", "--confluent")
    request = read(folder, answer["id"])
    secret = Secret(SECRET)
    assert {value.digest for value in request.values} == {secret.digest(b"\0\xaa"), secret.digest(b"\xff")}
    assert request.topics[0].confluent
    _, answer = person.request("--column", "customer_id", text="1182\n")
    request = read(folder, answer["id"])
    assert request.values[0].digest == secret.digest(b"1182")
    assert request.topics[0].column == "customer_id"


@pytest.mark.parametrize(
    ("arguments", "text", "rule"),
    [
        (("--column", "customer"), "1", "--column: there is no column customer; the parser gives customer_id, email"),
        (("--column", "country"), "AT", "--column: country is in partition_by, so paths"),
        (("--column", "price"), "1", "column price of topic east/orders: is double; only texts (string), bytes"),
        (("--column", "kafka_value"), "1", "there is no column kafka_value"),
        (("--column", "email.domain"), "1", "there is no domain in email.domain"),
        (("--column", "email", "--confluent"), "1", "--confluent: is about keys, and no part of the column email"),
        (("--column", "customer_id"), "1\nx7x7x7", "standard input: line 2: is not a whole number"),
        ((), f"{VALUE}\n\n", "standard input: line 2: is empty"),
        ((), "", "standard input: has no lines"),
        ((), b"ada\n\xff", "standard input: line 2: is not UTF-8"),
        (("--topic", "clicks"), VALUE, "clicks is not a topic of the file"),
        (("--hex",), VALUE, "standard input: line 1: is not bytes in hexadecimal digits"),
    ],
)
def test_what_cannot_be_erased_is_refused(
    person: Person, world: World, arguments: Sequence[str], text: str | bytes, rule: str
) -> None:
    code, errors = person.request(*arguments, text=text)
    assert (code, rule in " ".join(errors.split())) == (2, True), errors
    assert stored(world) == []
    assert VALUE not in errors
    assert "x7x7x7" not in errors


def test_a_value_as_an_argument_is_refused_and_not_repeated(person: Person, world: World) -> None:
    code, errors = person.request(VALUE)
    assert (code, "is the name of a file with the values, and no value" in errors) == (2, True)
    code, _, told = person("request", "--topic", "orders", "--by", "ada", "--reason", f"erase {VALUE}!", text=VALUE)
    assert (code, "has one of the values" in " ".join(told.split())) == (2, True)
    assert VALUE not in errors + told
    assert stored(world) == []
    for empty in (("--by", " ", "--reason", "x"), ("--by", "x", "--reason", " ")):
        assert person("request", "--topic", "orders", *empty, text=VALUE)[0] == 2


def test_a_topic_that_nobody_has_seen_is_refused(person: Person, world: World) -> None:
    with world.topics_file.open("a") as file:
        file.write("  - topic: clicks\n  - {topic: visits, cluster: west}\n")
    code, errors = person.request("--topic", "clicks")
    assert (code, "clicks" in errors) == (1, True)
    code, errors = person.request("--topic", "orders", "--topic", "visits")
    assert (code, "of several clusters: make a request for each" in errors) == (2, True)
    assert stored(world) == []


def test_no_object_output_or_log_has_a_value(
    person: Person, world: World, identities: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(0)
    _, answer = person.request("--topic", "orders")
    person.request("--column", "email")
    person.request("--column", "price")
    person.request(text=f"{VALUE}\n\n")
    person.request("--hex")
    person("request", "--topic", "orders", "--by", "ada", "--reason", "DSR", text=VALUE)
    identities[0] = "key GRACE by grace@host"
    assert person.approve(answer["id"])[0] == 0
    person("status")
    person("status", answer["id"], *JSON)
    person("report", answer["id"])
    person("report", answer["id"], *JSON)
    told = [*person.said, caplog.text, *(repr(vars(record)) for record in caplog.records)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum("_erasure" in str(path) for path in files) == 4
    bodies = [path.read_bytes() for path in files]
    for part in (VALUE, VALUE.lower(), VALUE.encode().hex(), SECRET):
        assert not [text for text in told if part in text]
        assert not [body for body in bodies if part.encode() in body]
        assert not [path for path in files if part in str(path)]


def test_another_person_approves(person: Person, folder: erasure_requests.ErasureFolder, identities: list[str]) -> None:
    name = person.request()[1]["id"]
    identities[0] = "key GRACE by grace@host"
    code, answer = person.approve(name, "--records", "7")
    assert (code, answer["by"], answer["records"], answer["new"]) == (0, "grace", 7, True)
    found = approved(folder.cluster, name)
    assert isinstance(found, Approved)
    assert (found.approval.by, found.approval.written_as, found.approval.records) == ("grace", identities[0], 7)
    again, repeated = person.approve(name, "--records", "7")
    assert (again, repeated) == (0, {**answer, "new": False})
    for changed in ((("--records", "8"), "grace"), ((), "grace"), (("--records", "7"), "alan")):
        code, errors = person.approve(name, *changed[0], by=changed[1])
        assert (code, "grace approved it at" in errors, "with 7 records" in errors) == (1, True, True)


@pytest.mark.parametrize(
    ("by", "written_as", "rule"),
    [
        ("ada", "key GRACE by grace@host", "ada made the request, and another person must approve it"),
        (" ADA ", "key GRACE by grace@host", "ada made the request"),
        ("grace", "key ADA by ada@host", "its approval needs another identity"),
        ("grace", "key ADA by grace@another", "its approval needs another identity"),
    ],
)
def test_one_person_cannot_do_both(
    person: Person, world: World, identities: list[str], by: str, written_as: str, rule: str
) -> None:
    name = person.request()[1]["id"]
    identities[0] = written_as
    code, errors = person.approve(name, by=by)
    assert (code, rule in errors) == (1, True)
    assert "Erase their records" not in person("approve", name, "--by", by, text="y\n")[2], "nor is anybody asked"
    assert stored(world) == [f"_erasure/east/{name}/request.json"]


def test_it_asks_and_shows_what_is_approved(person: Person, world: World, identities: list[str]) -> None:
    name = person.request(text="a\nb\n")[1]["id"]
    identities[0] = "key GRACE by grace@host"
    code, output, errors = person("approve", name, "--by", "grace", text="n\n")
    assert (code, output.strip()) == (1, "")
    assert "2 values of east/orders kafka_key, for 'DSR-1182', by ada at " in errors
    assert len(stored(world)) == 1
    assert person("approve", name, "--by", "grace", text="y\n")[1].strip() == f"{name}: approved"
    assert len(stored(world)) == 2
    assert "approved already, at " in person("approve", name, "--by", "grace", "-y")[1]


def test_a_request_that_is_not_there(person: Person) -> None:
    for command in (("approve", "0" * 16, "--by", "grace", "-y"), ("status", "0" * 16)):
        code, _, errors = person(*command)
        assert (code, "there is no such request" in errors) == (1, True)
        code, _, errors = person(command[0], "../request", *command[2:])
        assert (code, "must be the id of a request" in " ".join(errors.split())) == (2, True)
    assert person("status", "--cluster", "west")[0] == 2
    assert person("status")[:2] == (0, "no requests\n")
    assert person("status", *JSON)[:2] == (0, "[]\n")


def test_status_tells_how_far_requests_are(person: Person, world: World, identities: list[str]) -> None:
    with world.topics_file.open("a") as file:
        file.write("  - topic: clicks\n")
    other = RawBuilder(world.raw.store, topic="clicks", broker=2)
    other.segment([simple(0)])
    other.publish()
    waiting = person.request("--topic", "orders")[1]["id"]
    erased = person.request("--topic", "orders", "--topic", "clicks")[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(erased, "--records", "7")
    told(world, 1, waiting, "found", records={"table": 4})
    told(world, 2, erased, "refused", detail="too many", records={"table": 4})
    assert "  orders: refused; too many; 4 in table" in person("status", erased)[1].splitlines()
    told(world, 3, erased, "erased", records={"table": 3, "raw": 1})
    code, output, _ = person("status", *JSON)
    states = json.loads(output)
    assert [(state["id"], [each["state"] for each in state["topics"]]) for state in states] == [
        (waiting, ["waiting"]),
        (erased, ["erased", "approved"]),
    ]
    assert (code, states[0]["approval"], states[1]["approval"]["by"]) == (0, None, "grace")
    assert states[1]["topics"][0]["records"] == {"table": 3, "raw": 1}
    code, output, _ = person("status", erased)
    assert code == 0
    lines = output.splitlines()
    assert lines[0].startswith(f"{erased}: 1 value of east/orders kafka_key, east/clicks kafka_key, for 'DSR-1182', by")
    assert lines[1].endswith(", 30 days left")
    assert lines[2].startswith("  approved by grace at ")
    assert lines[2].endswith(", up to 7 records")
    assert lines[3:] == ["  orders: erased; 1 in raw, 3 in table", "  clicks: approved"]
    lines = person("status", waiting)[1].splitlines()
    assert lines[2:] == ["  waits for the approval of another person", "  orders: waiting; 4 in table"]


def told(world: World, attempt: int, name: str, status: str, *remaining: str, **others: Any) -> datetime:
    """A pass of ``orders`` reports on a request; later attempts come later. Returns its time."""
    at = utc_now() + timedelta(minutes=attempt)
    tell(world.table, attempt, name, status, at, *remaining, **others)
    return at


def test_status_tells_what_is_left_in_raw_and_until_when(world: World, person: Person, identities: list[str]) -> None:
    name = person.request()[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(name)
    kept = {"key": "east/orders-0/1.log", "version": "3Lg", "why": "is kept by Object Lock in compliance mode"}
    dated = [{**kept, "until": f"2027-0{month}-01T09:30:00Z"} for month in (3, 2)]
    for attempt, remaining, state in (
        (1, [*dated, {"key": "a.log", "why": "is damaged"}], "hidden; 3 objects left, some until 2027-03-01"),
        (2, [{"key": "a.log", "why": "is damaged"}], "hidden; 1 object left: see the report"),
        (3, [], "erased"),
    ):
        told(world, attempt, name, "erased", raw=RawReport.model_validate({"remaining": remaining}))
        assert person("status", name)[1].splitlines()[-1].startswith(f"  orders: {state}")
    lines = RawReport.model_validate({"remaining": dated}).lines()
    assert lines[0] == "  raw: 2 objects left, some until 2027-03-01 09:30 UTC: they hold erased records, or may"
    assert lines[1].endswith(
        "1.log (version 3Lg): is kept by Object Lock in compliance mode until 2027-03-01 09:30 UTC"
    )


def test_status_names_an_approval_that_does_not_count(
    person: Person, folder: erasure_requests.ErasureFolder, identities: list[str]
) -> None:
    name = person.request()[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(name)
    request = read(folder, name)
    folder.cluster.store.put(
        folder.cluster.keys.erasure(name, "request"), request.model_copy(update={"reason": "another"}).to_bytes()
    )
    code, output, _ = person("status")
    assert (code, "the approval does not count: the approval is of another content" in output) == (1, True)
    assert "orders: waiting" in output
    assert json.loads(person("status", *JSON)[1])[0]["objection"]


def test_a_request_has_thirty_days_unless_it_names_another_date(
    person: Person, folder: erasure_requests.ErasureFolder
) -> None:
    today = utc_now().date()
    _, answer = person.request()
    assert read(folder, answer["id"]).due == date.fromisoformat(answer["due"]) == today + timedelta(days=30)
    _, answer = person.request("--due", str(today))
    assert read(folder, answer["id"]).due == date.fromisoformat(answer["due"]) == today
    for wrong, rule in ((str(today - timedelta(days=1)), "is over"), ("soon", "does not match the format")):
        code, errors = person.request("--due", wrong)
        assert (code, rule in " ".join(errors.split())) == (2, True), errors


@pytest.mark.parametrize(
    ("days", "left", "near"),
    [
        (12, "12 days left", False),
        (10, "10 days left (near)", True),
        (0, "0 days left (near)", True),
        (-3, "OVERDUE by 3 days", True),
    ],
)
def test_status_marks_what_is_near_its_date(
    person: Person, world: World, folder: erasure_requests.ErasureFolder, days: int, left: str, near: bool
) -> None:
    made = utc_now() + timedelta(days=days) - timedelta(days=30)
    old = asked([b"ada"]).model_copy(update={"at": made})  # as of before requests had a date
    folder.cluster.store.put(folder.cluster.keys.erasure(old.id, "request"), old.to_bytes())
    lines = person("status")[1].splitlines()
    assert lines[1] == f"  due on {made.date() + timedelta(days=30)}, {left}"
    [state] = json.loads(person("status", *JSON)[1])
    assert (state["due"], state["days_left"], state["near"]) == (str(old.due_on), days, near)


def test_what_is_erased_is_not_near(person: Person, world: World, identities: list[str]) -> None:
    """Also if what remains of later requests hides the topic again."""
    name = person.request("--due", str(utc_now().date()))[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(name)

    def status() -> tuple[str, bool, str]:
        [state] = json.loads(person("status", *JSON)[1])
        [topic] = state["topics"]
        return topic["state"], state["near"], topic["detail"]

    assert status() == ("approved", True, "")
    told(world, 1, "", "erased")
    assert status() == ("approved", True, ""), "a pass of before it was approved"
    told(world, 2, name, "found", records={"table": 3})
    assert status() == ("approved", True, "")
    told(world, 3, name, "erased", "orders/0/7.log", records={"table": 3})
    told(world, 4, "f" * 16, "found")
    assert status() == ("hidden", True, "1 object left: see the report"), "a dry run looks at nothing of raw"
    at = told(world, 5, "", "erased")
    assert status() == ("erased", False, "")
    assert person("status")[1].splitlines()[1].endswith(f", closed at {at:%Y-%m-%d %H:%M} UTC")
    told(world, 6, "f" * 16, "erased", "orders/0/8.log", "orders/0/9.log")
    assert status() == ("hidden", False, "2 objects left, come back since: see the report")


def test_what_a_lock_keeps_is_due_again_a_week_after_its_date(
    person: Person, world: World, identities: list[str]
) -> None:
    name = person.request("--due", str(utc_now().date()))[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(name)

    def status() -> tuple[str, bool, str | None]:
        [state] = json.loads(person("status", *JSON)[1])
        return person("status")[1].splitlines()[1].partition(", ")[2], state["near"], state["kept_until"]

    def remains(attempt: int, *until: timedelta | None) -> datetime:
        now = utc_now().replace(second=0, microsecond=0)
        times = [now + at if at else None for at in until]
        items = [Remaining(key="7.log", version=f"{n}", why="is kept", until=at) for n, at in enumerate(times)]
        told(world, attempt, name, "erased", raw=RawReport(remaining=tuple(items)))
        return max(at for at in times if at)

    remains(1, timedelta(days=90), None)
    assert status() == ("0 days left (near)", True, None), "not the lock alone"
    last = remains(2, timedelta(days=90), timedelta(days=50))
    again = (last + timedelta(days=7)).date()
    text = f"and what remains is kept until {last:%Y-%m-%d %H:%M} UTC: due again on {again}"
    assert status() == (text, False, last.isoformat())
    last = remains(3, timedelta(days=-7))
    assert status()[1:] == (True, last.isoformat())
    told(world, 4, "", "erased")
    assert status()[1:] == (False, None)


def test_what_may_hold_the_records_of_others_alone_does_not_hold_a_request_open(
    person: Person, world: World, folder: erasure_requests.ErasureFolder, identities: list[str]
) -> None:
    """Else no request would ever be closed where there are new ones before each pass."""
    name = person.request()[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(name)
    [asked] = all_requests(folder.cluster)
    assert isinstance(asked, Approved)
    own, others = {"why": "packed", "approvals": ["0" * 64, asked.sha256]}, {"why": "packed", "approvals": ["0" * 64]}
    lake = [{"key": "orders/1.parquet", "why": "replaced"}, {"key": "orders/2.parquet", "why": "replaced"}]

    def status(attempt: int, raw: list[dict[str, Any]], lake: list[dict[str, str]]) -> str:
        remaining = RawReport.model_validate({"remaining": raw})
        told(world, attempt, name if attempt == 1 else "f" * 16, "erased", raw=remaining, lake=lake)
        return person("status", name)[1].splitlines()[-1].strip()

    assert status(1, [{"key": "a.pack", **own}], lake[:1]).startswith("orders: hidden; 2 objects left")
    assert status(2, [{"key": "b.pack", **own}, {"key": "a.pack", **others}], lake[1:]).startswith("orders: hidden; 1 ")
    assert status(3, [{"key": "b.pack", **others}], lake[:1]).startswith("orders: hidden; 1 object left: see")
    evidence = {"key": "_tidemark/east/orders/evidence/7.parquet", "why": "has sums"}
    assert status(4, [], [*lake[1:], evidence]).startswith("orders: hidden; 1 object left: see")
    assert status(5, [{"key": "b.pack", **others}], lake[1:]).startswith("orders: erased")
    unseen = [{"key": f"{folder}/1", "why": "names what was deleted"} for folder in ("_tombstones", "_untold")]
    assert status(6, unseen, lake[1:]).startswith("orders: erased"), "later requests wait for these"
    assert status(7, [{"key": "c.log", "why": "has no manifest"}], lake[1:]).startswith(
        "orders: hidden; 1 object left, come"
    )


def test_the_report_is_for_keeping(
    person: Person, world: World, folder: erasure_requests.ErasureFolder, identities: list[str]
) -> None:
    name = person.request(text="a\nb\n")[1]["id"]
    stored_request = read_request(folder.cluster, name)
    lines = person("report", name)[1].splitlines()
    assert "  waits for the approval of another person" in lines
    assert "  orders: waiting, no pass has searched it" in lines
    assert "  orders: all of it, since it is not erased" in lines
    identities[0] = "key GRACE by grace@host"
    person.approve(name, "--records", "7")
    told(world, 1, name, "found", records={"table": 4})
    at = told(world, 2, name, "erased", "orders/0/7.log", records={"table": 3, "raw": 1}, dates={"2026-02-02": 3})
    code, output, _ = person("report", name)
    lines = output.splitlines()
    assert code == 0
    for line in (
        "  reason: DSR-1182",
        f"  SHA-256 of request.json: {stored_request.sha256}",
        f"  2 values, as digests under the secret {Secret(SECRET).fingerprint}",
        "  orders: in kafka_key, up to the end that each of 2 partitions had then",
        f"  orders: erased by attempt 2 of airflow at {at:%Y-%m-%d %H:%M} UTC: 1 in raw, 3 in table",
        "    2026-02-02: 3 rows of the table",
        "  orders: 1 object left",
        "    orders/0/7.log: agents continue from it",
        *(f"  {item}" for item in NOT_COVERED),
    ):
        assert line in lines
    assert [line for line in lines if line.isupper()] == ["ASKED", "FOUND AND ERASED", "REMAINS", "NOT COVERED"]
    assert next(line for line in lines if line.startswith("  approved by grace at ")).endswith(
        ", up to 7 records, as key GRACE by grace@host"
    )
    answer = json.loads(person("report", name, *JSON)[1])
    found = approved(folder.cluster, name)
    assert isinstance(found, Approved)
    assert (answer["request_sha256"], answer["approval_sha256"]) == (stored_request.sha256, found.sha256)
    assert (answer["values"], answer["through"], answer["not_covered"]) == (
        2,
        {"orders": [[0, 0, 6], [0, 1, 3]]},
        [*NOT_COVERED],
    )
    [topic] = answer["topics"]
    assert (topic["state"], topic["records"], topic["dates"]) == ("hidden", {"table": 3, "raw": 1}, {"2026-02-02": 3})
    assert [(each["attempt"], each["dry_run"]) for each in topic["passes"]] == [(1, True), (2, False)]
    assert [(each["key"], each["why"]) for each in topic["remaining"]] == [
        ("orders/0/7.log", "agents continue from it")
    ]
    assert topic["closed_at"] is None
    at = told(world, 3, "", "erased")
    assert f"  orders: nothing, since {at:%Y-%m-%d %H:%M} UTC" in person("report", name)[1].splitlines()


def test_a_withdrawn_request_is_closed(person: Person, world: World, identities: list[str]) -> None:
    name = person.request("--due", str(utc_now().date()))[1]["id"]
    words = ("withdraw", name, "--reason", "asked twice", "--by")
    code, output, _ = person(*words, "ada", *JSON)
    answer = json.loads(output)
    assert (code, answer["by"], answer["reason"]) == (0, "ada", "asked twice")
    assert person(*words, "grace", *JSON)[:2] == (0, output), "the first counts"
    identities[0] = "key GRACE by grace@host"
    code, errors = person.approve(name)
    assert (code, "ada withdrew the request at " in errors) == (1, True)
    assert stored(world) == [f"_erasure/east/{name}/{part}.json" for part in ("request", "withdrawal")]
    [state] = json.loads(person("status", *JSON)[1])
    assert (state["withdrawal"]["by"], state["near"], state["topics"][0]["state"]) == ("ada", False, "withdrawn")
    for command in ("status", "report"):
        lines = person(command, name)[1].splitlines()
        assert [line for line in lines if line.startswith("  withdrawn by ada at ")]
    identities[0] = "key ADA by ada@host"
    begun = person.request()[1]["id"]
    identities[0] = "key GRACE by grace@host"
    person.approve(begun)
    person("withdraw", begun, *words[2:], "ada")
    told(world, 1, begun, "erased", records={"table": 3})
    assert "  orders: erased; 3 in table" in person("status", begun)[1].splitlines(), "by a pass that had begun before"


@pytest.fixture(params=[True, False], ids=["the reply", "the object"])
def lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick_retries: None) -> list[str]:
    """Of each object below ``_erasure/`` the first reply is lost, or the object as well; their keys."""
    put = LocalStore.put
    keys: list[str] = []

    def losing(store: LocalStore, key: str, body: Any, **of: Any) -> str:
        fails = key.startswith("_erasure/") and key not in keys
        etag = put(store, key, body, **of) if request.param or not fails else ""
        if fails:
            keys.append(key)
            raise UnknownOutcome(key, "no answer")
        return etag

    monkeypatch.setattr(LocalStore, "put", losing)
    return keys


def test_lost_replies_do_no_harm(person: Person, world: World, identities: list[str], lost: list[str]) -> None:
    code, made = person.request()
    assert code == 0
    identities[0] = "key GRACE by grace@host"
    code, answer = person.approve(made["id"])
    assert (code, answer["new"]) == (0, True)
    assert person.approve(made["id"]) == (0, {**answer, "new": False})
    assert person("withdraw", made["id"], "--by", "ada", "--reason", "asked twice")[0] == 0
    assert stored(world) == sorted(lost) == [f"_erasure/east/{made['id']}/{part}.json" for part in PARTS]


def test_an_id_that_is_taken_is_not_another_persons(
    person: Person, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", bytes)
    assert person.request()[0] == 0
    code, errors = person.request(text="bob")
    assert (code, "exists with other content" in errors) == (1, True)
    assert len(stored(world)) == 1
