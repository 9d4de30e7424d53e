"""Seeded damage of each kind of object, and of each field: told by the object's key, and never passed over."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_tier import Fixture
from tidemark.errors import ConfigError, FormatError
from tidemark.kafka_log import open_transactions, parse_producer_snapshot, scan_batches
from tidemark.kafka_tier.copies import ListedCopy, ProvedCopy, SegmentCopy, prove
from tidemark.kafka_tier.encryption import KeyNotGiven, decryption, private_key
from tidemark.kafka_tier.manifest import KINDS, CopyName, TierManifest, parse_key


def complete(archive: Fixture, topic: str) -> list[ListedCopy]:
    return [copy for copy in archive.copies(topic) if not copy.missing]


def check(archive: Fixture, listed: ListedCopy) -> None:
    """Prove a copy against the history of the newest one, after the copy before it, as an adoption does."""
    checked(archive, listed)()


def checked(archive: Fixture, listed: ListedCopy) -> Callable[[], ProvedCopy]:
    """The same as a function, for a copy that is damaged again and again."""
    tier = archive.tier()
    of_partition = [one for one in complete(archive, listed.name.topic) if one.name.partition == listed.name.partition]
    newest = next(one for one in reversed(of_partition) if one.name != listed.name)
    history = SegmentCopy.open(tier, newest).indexes().history
    earlier = [one for one in of_partition if one.name.base < listed.name.base]
    opened = None
    if earlier:
        snapshot = SegmentCopy.open(tier, earlier[-1]).indexes().producers
        opened = open_transactions(parse_producer_snapshot(snapshot, "snapshot"))

    def again() -> ProvedCopy:
        [current] = [one for one in archive.copies(listed.name.topic) if one.name == listed.name]
        return prove(SegmentCopy.open(tier, current), history, opened)

    return again


@pytest.fixture(params=["plain", "both"])
def archive(request: pytest.FixtureRequest) -> Fixture:
    found: Fixture = request.getfixturevalue(request.param)
    return found


def first_of_payments(archive: Fixture) -> ListedCopy:
    """A copy with a transaction index, which is not the newest one."""
    tier = archive.tier()
    copies = complete(archive, "payments")[:-1]
    return next(one for one in copies if SegmentCopy.open(tier, one).manifest.segment_indexes.transaction is not None)


def test_a_batch_with_a_damaged_place_is_told_by_the_logs_key(plain: Fixture, rng: random.Random) -> None:
    """No checksum covers its base offset and length, and the indexes contradict them before the next batch does."""
    listed = first_of_payments(plain)
    again, path = checked(plain, listed), plain.path(listed, "log")
    sound = path.read_bytes()
    for header in scan_batches([sound], "log", 0):
        for at in range(header.position, header.position + 12):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(FormatError) as raised:
                again()
            assert raised.value.name == listed.name.key(plain.prefix, "log"), (header, at)


@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_any_flipped_byte_is_told_by_the_objects_key(archive: Fixture, kind: Any, rng: random.Random) -> None:
    """Or it changes nothing: an epoch may begin anywhere below the log's start."""
    listed = first_of_payments(archive)
    again = checked(archive, listed)
    proved = again()
    path = archive.path(listed, kind)
    sound, told = path.read_bytes(), 0
    count = 60 if archive.root.name == "plain" else 12  # an encrypted copy's key takes long
    for at in range(len(sound)) if len(sound) < 300 else sorted(rng.sample(range(len(sound)), count)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            named, same = None, again() == proved
        except FormatError as error:
            named, same = error.name, False
        assert same or named == listed.name.key(archive.prefix, kind), (at, named)
        told += not same
    assert told >= min(len(sound), count) - 1
    path.write_bytes(sound)
    assert again() == proved


@pytest.mark.parametrize("kind", ["log", "indexes"])
@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"\0", None])
def test_another_size_and_a_missing_object_are_told(
    archive: Fixture, kind: Any, change: Callable[[bytes], bytes] | None
) -> None:
    listed = first_of_payments(archive)
    path = archive.path(listed, kind)
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError) as told:
        check(archive, listed)
    assert told.value.name == listed.name.key(archive.prefix, kind)
    assert ("is missing" if change is None else "bytes, and its .rsm-manifest says") in told.value.rule


def test_swapped_chunks_decrypt_and_are_told_by_the_batches(tmp_path: Path, unpacked: dict[str, Fixture]) -> None:
    """GCM does not bind a chunk to its place: a fixture that is not compressed has chunks of one size."""
    from tests.support.kafka_tier import unpack

    encrypted = unpack("encrypted", tmp_path)
    tier = encrypted.tier()
    listed = next(one for one in complete(encrypted, "orders") if one.objects["log"].size > 3 * 4124)
    path, body = encrypted.path(listed, "log"), encrypted.path(listed, "log").read_bytes()
    path.write_bytes(body[4124 : 2 * 4124] + body[:4124] + body[2 * 4124 :])
    [current] = [one for one in encrypted.copies("orders") if one.name == listed.name]
    copy = SegmentCopy.open(tier, current)
    with pytest.raises(FormatError, match="at byte 0, offset") as told:
        prove(copy, copy.indexes().history, None)
    assert told.value.name == copy.key("log")


FIELDS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("no version", lambda m: m.pop("version"), "version: Field required"),
    ("a later version", lambda m: m.update(version="2"), "version: "),
    ("no chunk index", lambda m: m.pop("chunkIndex"), "chunkIndex: Field required"),
    ("an unknown cut", lambda m: m["chunkIndex"].update(type="other"), "chunkIndex: "),
    ("no chunk size", lambda m: m["chunkIndex"].update(originalChunkSize=0), "originalChunkSize"),
    ("another chunk size", lambda m: m["chunkIndex"].update(originalChunkSize=100), "chunkIndex: has "),
    ("huge", lambda m: m["chunkIndex"].update(originalFileSize=1 << 40), "originalFileSize"),
    (
        "a million chunks",
        lambda m: m["chunkIndex"].update(originalChunkSize=1, originalFileSize=1 << 30),
        "chunkIndex: ",
    ),
    ("no indexes", lambda m: m.pop("segmentIndexes"), "segmentIndexes: Field required"),
    ("a gap", lambda m: m["segmentIndexes"]["timestamp"].update(position=1), "segmentIndexes: "),
    ("no compression", lambda m: m.pop("compression"), "compression: Field required"),
    ("no metadata", lambda m: m.pop("remoteLogSegmentMetadata"), "remoteLogSegmentMetadata: Field required"),
    ("another topic", lambda m: m["remoteLogSegmentMetadata"]["remoteLogSegmentId"].update(id="x" * 22), "another seg"),
    ("no epochs", lambda m: m["remoteLogSegmentMetadata"].update(segmentLeaderEpochs={}), "segmentLeaderEpochs"),
    ("late epochs", lambda m: m["remoteLogSegmentMetadata"].update(segmentLeaderEpochs={"0": 9999}), "must begin at"),
    (
        "an end below",
        lambda m: m["remoteLogSegmentMetadata"].update(endOffset=0, startOffset=1),
        "is below startOffset",
    ),
]


@pytest.mark.parametrize(("change", "rule"), [field[1:] for field in FIELDS], ids=[field[0] for field in FIELDS])
def test_each_field_of_a_manifest_is_checked(plain: Fixture, change: Callable[[Any], object], rule: str) -> None:
    listed = complete(plain, "orders")[0]
    path = plain.path(listed, "rsm-manifest")
    fields = json.loads(path.read_bytes())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(FormatError) as told:
        check(plain, listed)
    assert told.value.name == listed.name.key(plain.prefix, "rsm-manifest")
    assert rule in told.value.rule


def test_another_end_is_told_by_the_log(plain: Fixture) -> None:
    listed = complete(plain, "orders")[0]
    path = plain.path(listed, "rsm-manifest")
    fields = json.loads(path.read_bytes())
    fields["remoteLogSegmentMetadata"]["endOffset"] += 1
    path.write_text(json.dumps(fields))
    with pytest.raises(FormatError, match=r"ends at offset \d+, and its"):
        check(plain, listed)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"{}" * 9])
def test_rubbish_is_no_manifest(body: bytes) -> None:
    name = CopyName("orders", "w" * 22, 0, 0, "s" * 22)
    with pytest.raises(FormatError, match="key: "):
        TierManifest.parse(body, "key", name)


def test_encryption_fails_by_the_key_pair(both: Fixture, tmp_path: Path) -> None:
    listed = complete(both, "orders")[0]
    [pair] = {SegmentCopy.open(both.tier(), listed).manifest.encryption.key_pair}  # type: ignore[union-attr]
    with pytest.raises(KeyNotGiven, match=f"--key-file {pair}=PATH") as told:
        SegmentCopy.open(both.tier(keys=False), listed).indexes()
    assert told.value.name == listed.name.key(both.prefix, "rsm-manifest")
    others = [path for name, path in both.key_files.items() if name != pair]
    wrong = {pair: private_key(others[0])}
    with pytest.raises(FormatError, match="encryption: dataKey is not wrapped for the key pair"):
        decryption(SegmentCopy.open(both.tier(), listed).manifest.encryption, wrong, "key")  # type: ignore[arg-type]
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no key")
    with pytest.raises(ConfigError, match="is no private key in PEM"):
        private_key(rubbish)


@pytest.mark.parametrize("package", ["zstandard", "cryptography"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    both: Fixture, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = complete(both, "orders")[0]
    copy = SegmentCopy.open(both.tier(), listed)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    needing: Callable[[], object] = both.tier if package == "cryptography" else lambda: list(copy.log())
    with pytest.raises(ConfigError, match=r"tidemark-kafka\[kafka-tier\]"):
        needing()


def packed(base: int, width: int, values: list[int], last: int) -> dict[str, Any]:
    """A chunk index as the plugin packs it."""
    from base64 import b64encode

    import zstandard

    raw = (len(values) + 1).to_bytes(4, "big") + base.to_bytes(4, "big") + bytes([width])
    raw += b"".join((value - base).to_bytes(width, "big") for value in values) + last.to_bytes(4, "big")
    return {"type": "variable", "transformedChunks": b64encode(zstandard.ZstdCompressor().compress(raw)).decode()}


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sizes_of_each_width_are_unpacked(both: Fixture, width: int, rng: random.Random) -> None:
    base = rng.randrange(1 << 16)
    values = [base, *(base + rng.randrange(1 << (8 * width - 2)) for _ in range(20))]
    fields = json.loads(both.path(complete(both, "orders")[0], "rsm-manifest").read_bytes())
    count = len(values) + 1
    fields["chunkIndex"] = packed(base, width, values, 7) | {"originalChunkSize": 10, "originalFileSize": 10 * count}
    manifest = TierManifest.parse(json.dumps(fields).encode(), "key", complete(both, "orders")[0].name)
    chunks = manifest.chunks("key")
    assert [chunk.stored for chunk in chunks] == [*values, 7]
    assert [chunk.at for chunk in chunks] == [sum(values[:number]) for number in range(count)]


@pytest.mark.parametrize(
    "key",
    [
        "orders/0/00000000000000000000-ssssssssssssssssssssss.log",
        f"orders-{'w' * 22}/0/0-{'s' * 22}.log",
        f"orders-{'w' * 22}/0/{0:020d}-{'s' * 22}.other",
        f"orders-{'w' * 22}/00/{0:020d}-{'s' * 22}.log",
        f"orders-{'w' * 22}/0/{0:020d}-{'s' * 22}.log/x",
        f"orders-{'w' * 22}/0/{1 << 63:020d}-{'s' * 22}.log",
    ],
)
def test_no_other_key_is_a_copys(key: str) -> None:
    assert parse_key(key, "") is None


@pytest.mark.parametrize("prefix", ["", "tier/", "cluster-1_", "a/b"])
@pytest.mark.parametrize("topic", ["orders", "a-b", "x-" + "w" * 22, "-", "_.-"])
def test_a_key_is_parsed_as_it_was_made(prefix: str, topic: str) -> None:
    name = CopyName(topic, "-_" * 11, 7, 42, "_-" * 11)
    for kind in KINDS:
        assert parse_key(name.key(prefix, kind), prefix) == (name, kind)
