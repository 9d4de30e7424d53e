"""``tidemark consume`` without a broker: formats, ranges, errors, and how it ends."""

from __future__ import annotations

import base64
import json
import random
import signal
import struct
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.consumer.history import Kept
from tests.consumer.raw_history import RawHistory, raw_history
from tests.support.erased import erase
from tests.support.paths import env_bin
from tests.support.process import ManagedProcess
from tests.support.waiting import HUNG
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import T0, Record, batch
from tests.tidemark.remote.live import Packing, Range
from tidemark import read_range
from tidemark.formats.keys import SegmentName

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def made(tmp_path: Path, rng: random.Random) -> RawHistory:
    return raw_history(tmp_path, rng)


@pytest.fixture
def plain(tmp_path: Path) -> RawHistory:
    """Two partitions of ten records, one a second, of which offset and value are the same number."""
    made = raw_history(tmp_path, random.Random(0), rounds=0)
    for partition in range(2):
        for number in range(10):
            made.add(partition, [Record(0, T0 + 1000 * number, b"k", b"%d" % number)])
    made.raw.publish()
    return made


def consume(capsys: Capture, made: RawHistory, *more: str) -> tuple[int, list[dict[str, Any]], str]:
    code, output, errors = call(capsys, "consume", "orders", "--topics", made.topics_file, *more)
    return code, [json.loads(line) for line in output.splitlines()], errors


def test_people_see_times_and_printable_lines(tmp_path: Path, capsys: Capture) -> None:
    made = raw_history(tmp_path, random.Random(0), rounds=0)
    made.add(0, [Record(0, T0, b"k", b'{"a": "\xc3\xab"}\n'), Record(1, -1, None, b"\x1b[0m" + b"x" * 500)])
    made.raw.publish()
    code, output, _ = call(capsys, "consume", "orders", "--topics", made.topics_file, "--format", "text")
    first, other = output.splitlines()
    assert (code, first) == (0, 'orders-0-0  2026-02-02 02:40:00.000 UTC  k  {"a": "ë"}\\n')
    assert other == rf"orders-0-1  no time  null  \x1b[0m{'x' * 396}…"


def values(found: list[dict[str, Any]], partition: int = 0) -> list[int]:
    return [int(one["value"]) for one in found if one["partition"] == partition]


def decoded(text: str | None, encoding: str | None) -> bytes | None:
    if text is None or encoding is None:
        assert (text, encoding) == (None, None)
        return None
    return text.encode() if encoding == "utf-8" else base64.b64decode(text)


def told(line: dict[str, Any]) -> Kept:
    headers = [(one["key"], decoded(one["value"], one["encoding"])) for one in line["headers"]]
    key, value = (decoded(line[name], line[f"{name}_encoding"]) for name in ("key", "value"))
    return key, value, headers, line["timestamp"]


def test_json_lines_lose_nothing(made: RawHistory, capsys: Capture) -> None:
    code, found, errors = consume(capsys, made)
    assert (code, errors) == (0, "")
    for partition, expected in enumerate(made.expected):
        lines = [one for one in found if one["partition"] == partition]
        assert [told(one) for one in lines] == expected
        stored = read_range("orders", partition, storage=made.topics_file)
        assert [one["offset"] for one in lines] == stored["kafka_offset"].to_pylist()
        assert {(one["topic"], one["timestamp_type"], one["leader_epoch"]) for one in lines} == {
            ("orders", "create", 3)
        }
    assert {one["value_encoding"] for one in found} == {None, "utf-8", "base64"}


def test_raw_values_are_delimited_or_follow_their_length(made: RawHistory, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "values"
    code, _, _ = consume(capsys, made, "--format", "raw", "--length-prefixed", "--partition", "0", "--file", f"{file}")
    data, at, found = file.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        found.append(None if size < 0 else data[at + 4 : at + 4 + size])
        at += 4 + max(0, size)
    assert (code, found) == (0, [one[1] for one in made.expected[0]])
    code, _, _ = consume(
        capsys, made, "--format", "raw", "--delimiter", "|\\0", "--partition", "0", "--file", f"{file}"
    )
    assert (code, file.read_bytes()) == (0, b"".join((one[1] or b"") + b"|\0" for one in made.expected[0]))
    code, _, errors = consume(capsys, made, "--format", "raw", "--delimiter", "\\x")
    assert (code, "--delimiter" in errors) == (2, True)


def test_an_arrow_file_holds_the_columns_of_the_tables(made: RawHistory, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "orders.arrow"
    assert consume(capsys, made, "--format", "arrow", "--file", f"{file}", "--partition", "1")[0] == 0
    with pa.ipc.open_file(f"{file}") as opened:
        assert opened.read_all().equals(read_range("orders", 1, storage=made.topics_file))
    done = subprocess.run(
        [*program(made), "--format", "arrow", "--partition", "1"], capture_output=True, timeout=HUNG, check=True
    )
    with pa.ipc.open_stream(done.stdout) as stream:
        assert stream.read_all().equals(read_range("orders", 1, storage=made.topics_file))


def program(made: RawHistory) -> list[str]:
    return [str(env_bin("dev", "tidemark")), "consume", "orders", "--topics", str(made.topics_file)]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (["--from", "7"], [7, 8, 9], [7, 8, 9]),
        (["--from", "1:7", "--to", "1:9"], list(range(10)), [7, 8]),
        (["--from", "end"], [], []),
        (["--from", "8", "--from", "0:9", "--to", "end"], [9], [8, 9]),
        (["--from", f"@{T0 + 3000}", "--to", f"@{T0 + 5001}", "--partition", "1"], [], [3, 4, 5]),
        (["--from", "2026-02-02T02:40:08Z"], [8, 9], [8, 9]),
        (["--from", "2026-02-02T03:40:08+01:00"], [8, 9], [8, 9]),
        (["--to", "2000-01-01"], [], []),
        (["--limit", "0"], [], []),
        (["--partition", "0", "--limit", "3"], [0, 1, 2], []),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_ranges(options: list[str], first: list[int], second: list[int], plain: RawHistory, capsys: Capture) -> None:
    code, found, errors = consume(capsys, plain, *options)
    assert (code, errors) == (0, "")
    assert (values(found, 0), values(found, 1)) == (first, second)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--from", "yesterday"], "--from"),
        (["--from", "1", "--from", "2"], "is given twice"),
        (["--partition", "7"], "there is no partition 7"),
        (["--follow", "--to", "3"], "never ends"),
        (["--group", "g"], "needs --bootstrap"),
        (["--file", "/nowhere/at/all"], "cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_asked_wrongly_exits_with_2(options: list[str], rule: str, plain: RawHistory, capsys: Capture) -> None:
    code, found, errors = consume(capsys, plain, *options)
    assert (code, found, rule in errors) == (2, [], True), errors


def test_what_is_not_there_is_never_left_out_silently(plain: RawHistory, capsys: Capture) -> None:
    code, found, errors = consume(capsys, plain, "--to", "0:50", "--partition", "0")
    assert (code, values(found)) == (0, list(range(10)))
    assert "orders-0: offsets 0 to 50 were requested, and the partition ends at 10" in errors
    plain.raw.partition(0).start_offset = 4
    for base in range(4):
        plain.raw.store.delete(plain.raw.keys(0).segment(SegmentName(base), "manifest.json"))
    plain.raw.publish()
    code, found, errors = consume(capsys, plain, "--from", "2", "--partition", "0")
    assert (code, found, "offset 2 is not in the remote tier" in errors) == (1, [], True)
    code, _, errors = call(capsys, "consume", "nothing", "--topics", plain.topics_file)
    assert (code, "has ever seen this topic" in errors) == (2, True)


def test_a_gap_is_an_error_or_is_skipped(plain: RawHistory, capsys: Capture) -> None:
    plain.lose(0, 2, [Record(0, T0, b"k", b"12")])
    only = ("--partition", "0")
    code, found, errors = consume(capsys, plain, *only)
    assert (code, "offsets 10 to 11 are missing (unknown)" in errors) == (1, True), errors
    assert values(found) == list(range(10))
    code, found, _ = consume(capsys, plain, *only, "--on-gap", "skip")
    assert (code, values(found)) == (0, [*range(10), 12])


def test_a_gap_at_the_end_is_an_error_as_well(plain: RawHistory, capsys: Capture) -> None:
    known = plain.raw.partition(0)
    known.next_offset = 10
    known.gaps = [plain.raw.gap(10, 12)]
    plain.raw.publish()
    code, found, errors = consume(capsys, plain)
    assert (code, "offsets 10 to 11 are missing (unknown)" in errors) == (1, True), errors
    assert consume(capsys, plain, "--to", "0:10")[0] == 0
    code, found, _ = consume(capsys, plain, "--on-gap", "skip")
    assert (code, values(found)) == (0, list(range(10)))


def test_undecided_and_aborted_records_are_read_if_one_says_so(made: RawHistory, capsys: Capture) -> None:
    committed, found = (len(consume(capsys, made, *more)[1]) for more in ([], ["--isolation", "read_uncommitted"]))
    assert committed < found


def test_a_closed_pipe_ends_it_quietly(made: RawHistory) -> None:
    """Far more than a pipe holds, and somebody who reads one line of it."""
    for _ in range(300):
        made.add(0, [Record(0, T0, b"k", b"x" * 1000)])
    made.raw.publish()
    with subprocess.Popen(program(made), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert json.loads(child.stdout.readline())["topic"] == "orders"
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(30) == 0


def test_following_goes_on_until_it_is_interrupted(plain: RawHistory, tmp_path: Path) -> None:
    log = tmp_path / "lines"

    def seen() -> list[int]:
        return values([json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")])

    # Tests that a shell runs in the background have children that ignore SIGINT, unless one says otherwise.
    command = ["env", "--default-signal=INT", *program(plain), "--follow", "--from", "0:8", "--partition", "0"]
    with ManagedProcess("consume", command, log=log) as child:
        child.wait_until(lambda: seen() == [8, 9], what="to read what is there")
        plain.add(0, [Record(0, T0, b"k", b"10")])
        plain.raw.publish()
        child.wait_until(lambda: seen() == [8, 9, 10], what="to read what came later")
        agent = Packing(plain.raw)
        agent.lead()
        plain.raw.publish()
        agent.pack(Range([batch(11, [Record(0, T0, b"k", b"11")])]))
        child.wait_until(lambda: seen() == [8, 9, 10, 11], what="to read what is packed")
        child.send(signal.SIGINT)
        assert child.wait(30) == 130
    assert seen() == [8, 9, 10, 11]


def test_an_environment_without_the_extra_says_so(plain: RawHistory) -> None:
    """The agent's has the same command line and none of the libraries."""
    command = [str(env_bin("agent", "tidemark")), *program(plain)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG, check=False)
    assert (done.returncode, "install tidemark with the extra consumer" in done.stderr) == (2, True), done.stderr


def test_help_shows_examples(capsys: Capture) -> None:
    for command in ("consume", "restore"):
        code, output, _ = call(capsys, command, "--help")
        assert (code, f"tidemark {command} orders" in output, "--from" in output) == (0, True, True)


def test_erased_records_are_passed_over(plain: RawHistory, capsys: Capture) -> None:
    erase(plain.raw, [0, 3, 9])
    erase(plain.raw, range(10), 1)
    assert [values(consume(capsys, plain)[1], partition) for partition in (0, 1)] == [[1, 2, 4, 5, 6, 7, 8], []]
    code, found, errors = consume(capsys, plain, "--from", f"@{T0 + 3000}", "--to", "9", "--limit", "2")
    assert (code, values(found), errors) == (0, [4, 5], "")
