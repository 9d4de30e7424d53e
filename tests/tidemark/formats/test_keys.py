"""Keys: the vectors of Pinterest's layout, round trips, and nothing that could leave its folder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import FormatError
from tidemark.formats.keys import (
    ControlKeys,
    Endpoint,
    PackName,
    PartitionKeys,
    SegmentName,
    TableKeys,
    check_cluster,
    check_topic,
    entropy,
    place_of,
)
from tidemark.store.schemes import split_store_url

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True).filter(lambda name: name not in {".", ".."})
TOPIC_ID = "0123456789abcdefghij_-"


@pytest.mark.parametrize(
    ("cluster", "topic", "partition", "bits", "expected"),
    [
        ("test-cluster", "test_topic_a", 0, 5, "01010"),
        ("my-cluster", "my-topic", 0, 3, "111"),
        ("prod-kafka-01", "user.events-v2", 17, 12, "110010010011"),
    ],
)
def test_entropy_vectors(cluster: str, topic: str, partition: int, bits: int, expected: str) -> None:
    assert entropy(cluster, topic, partition, bits) == expected


suffixes = st.one_of(
    st.just(""),
    st.integers(0, 2**31 - 1).map(lambda epoch: SegmentName.of_branch(0, epoch).suffix),
    st.integers(0, 2**32 - 1).map(lambda crc32c: SegmentName.of_damage(0, crc32c).suffix),
)


@given(topics, topics, st.integers(0, 10_000), st.integers(0, 2**63 - 1), st.integers(0, 20), suffixes)
def test_segment_keys_round_trip(cluster: str, topic: str, partition: int, base: int, bits: int, suffix: str) -> None:
    keys = PartitionKeys(Endpoint("s3://raw", "a/b", bits), cluster, topic, partition)
    for extension in ("log", "index", "timeindex", "txnindex", "snapshot", "manifest.json", "corrupt"):
        key = keys.segment(SegmentName(base, suffix), extension)
        assert key.startswith(keys.folder)
        assert keys.segment_of(key) == (SegmentName(base, suffix), extension)
    assert keys.segment_of(keys.watermark) is None
    assert "//" not in keys.watermark


def test_known_keys() -> None:
    keys = PartitionKeys(Endpoint("s3://raw", "ts", 3), "my-cluster", "my-topic", 0)
    assert keys.segment(SegmentName(42), "log") == "ts/111/my-cluster/my-topic-0/00000000000000000042.log"
    folder = "ts/111/my-cluster/my-topic-0/"
    assert keys.segment(SegmentName.of_branch(42, 7), "log") == f"{folder}00000000000000000042.log-7"
    damaged = SegmentName.of_damage(42, 0x9A3F01C2)
    assert keys.segment(damaged, "corrupt") == f"{folder}00000000000000000042.corrupt-damaged-9a3f01c2"
    assert keys.segment_of(f"{folder}00000000000000000042.log-other") is None
    control = ControlKeys("ts", "c")
    assert control.index(7) == "ts/_watermarks/c/7.json"
    assert control.incarnations("t") == "ts/_topics/c/t.json"
    assert control.acknowledgement("t", 0, 5, 9) == "ts/_acks/c/t-0/5-9.json"
    assert control.foreign_watermarks("t", 0) == "ts/_foreign/c/t-0/"
    assert control.pack(PackName(5, "0f" * 16)) == f"ts/_tails/c/5/{'0f' * 16}.pack"
    assert (control.packs(5), control.tails) == ("ts/_tails/c/5/", "ts/_tails/c/")
    assert (control.head(5), control.heads) == ("ts/_heads/c/5.json", "ts/_heads/c/")
    assert control.damaged_head(5, '"0f-2"') == "ts/_damaged/c/5/0f-2.head"
    spans = "00000000000000000005-00000000000000000009"
    assert control.tombstone("t", 0, 5, 9, "20261120T120000000Z") == (
        f"ts/_tombstones/c/t-0/{spans}-20261120T120000000Z.json"
    )
    assert control.pack_tombstone("A" * 22, "20261120T120000000Z") == (
        f"ts/_tombstones/c/_packs/{'A' * 22}-20261120T120000000Z.json"
    )
    assert not control.pack_tombstones.startswith(control.tombstones("_packs", 0)), "of no topic's partition"
    table = TableKeys("", "c", "t", "tab")
    assert table.retention("raw") == "_tidemark/c/t/retention/raw/"
    assert table.ledger(3, 99) == "_tidemark/c/t/ledger/3-99.json"
    assert (table.root, table.quarantine) == ("tab", "tab__quarantine")


def test_no_control_key_looks_like_a_segment() -> None:
    control = ControlKeys("ts", "c")
    pack, head = control.pack(PackName(5, "0" * 32)), control.head(5)
    for key in (control.index(7), control.incarnations("t.log"), control.acknowledgement("t", 0, 5, 9), pack, head):
        assert not key.endswith((".log", ".index", ".timeindex"))
        assert PartitionKeys(Endpoint("s3://raw", "ts"), "c", "t", 0).segment_of(key) is None


@given(topics, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16), st.sampled_from(["", "a", "a/b"]))
def test_names_of_packs_round_trip(cluster: str, broker: int, digits: bytes, prefix: str) -> None:
    control, name = ControlKeys(prefix, cluster), PackName(broker, digits.hex())
    assert PackName.parse(str(name)) == name
    key = control.pack(name)
    assert control.pack_of(key) == name
    assert key.startswith(control.packs(broker))
    assert "//" not in key
    assert ControlKeys(prefix, f"{cluster}x").pack_of(key) is None
    assert control.pack_of(str(name)) is None
    assert control.pack_of(control.head(broker)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0f" * 16,
        f"5/{'0f' * 16}",
        f"5/{'0F' * 16}.pack",
        f"5/{'0f' * 15}.pack",
        f"5/{'0f' * 16}.pack\n",
        f"5/{'0f' * 16}.log",
        f"05/{'0f' * 16}.pack",
        f"-5/{'0f' * 16}.pack",
        f"\u0665/{'0f' * 16}.pack",
        f"../5/{'0f' * 16}.pack",
        f"/5/{'0f' * 16}.pack",
        f"5//{'0f' * 16}.pack",
    ],
)
def test_only_a_packs_name_becomes_its_key(text: str) -> None:
    with pytest.raises(ValueError, match="is not a pack"):
        PackName.parse(text)
    assert ControlKeys("ts", "c").pack_of(f"ts/_tails/c/{text}") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "a@b", "a\n"])
def test_illegal_topics_never_become_keys(name: str) -> None:
    with pytest.raises(ValueError, match="valid topic name"):
        check_topic(name)
    with pytest.raises(ValueError, match="valid topic name"):
        ControlKeys("", "c").incarnations(name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_illegal_clusters(name: str) -> None:
    with pytest.raises(ValueError, match="cluster name"):
        check_cluster(name)


@pytest.mark.parametrize("prefix", ["/a", "a/", "a//b", "a b", "a/../b/é"])
def test_illegal_prefixes(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Endpoint("s3://raw", prefix)


def test_incarnations_have_places_of_their_own() -> None:
    assert place_of("orders", TOPIC_ID, first=True) == "orders"
    assert place_of("orders", TOPIC_ID, first=False) == f"orders@{TOPIC_ID}"
    with pytest.raises(ValueError, match="needs its topic id"):
        place_of("orders", None, first=False)


@pytest.mark.parametrize("length", [1, 220, 221, 222, 231, 249])
def test_no_key_of_a_topic_made_again_has_a_longer_name_than_a_directory_takes(length: int) -> None:
    topic, partition = "t" * length, 2**31 - 1
    place = place_of(topic, TOPIC_ID, first=False)
    assert place == f"{topic[:221]}@{TOPIC_ID}"
    keys, control = PartitionKeys(Endpoint("file:///raw"), "c", place, partition), ControlKeys("", "c")
    names = [
        keys.manifest(SegmentName.of_branch(2**63 - 1, 2**31 - 1)),
        keys.segment(SegmentName.of_damage(2**63 - 1, 2**32 - 1), "corrupt"),
        control.incarnations(topic),
        control.foreign_watermarks(place, partition),
        control.tombstone(place, partition, 0, 2**63 - 1, "20261128T150000Z"),
        control.mask_index(place),
        control.mask(place, partition, 0, 2**63 - 1, "f" * 64),
        control.buried(place, partition),
        control.untold(topic),
        control.acknowledgement(place, partition, 0, 2**63 - 1),
    ]
    assert max(len(part.encode()) for name in names for part in name.split("/")) <= 255


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://raw", ("s3://raw", "")),
        ("s3://raw/a/b/", ("s3://raw", "a/b")),
        ("file:///srv/raw", ("file:///srv/raw", "")),
    ],
)
def test_store_urls(url: str, expected: tuple[str, str]) -> None:
    assert split_store_url(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://raw/a", ("s3://raw", "a")),
        ("sqlite:///srv/raw.db", ("sqlite:///srv/raw.db", "")),
        ("hdfs://name:8020/a/b/", ("hdfs://name:8020", "a/b")),
        ("memory://x", ("memory://x", "")),
    ],
)
def test_urls_of_stores_of_other_kinds(url: str, expected: tuple[str, str]) -> None:
    assert split_store_url(url, any_scheme=True) == expected


@pytest.mark.parametrize("url", ["raw", "s3://A_B", "file://x", "s3:///x", "gs://", "gs:///", "GS://x", "gs://x y"])
def test_bad_urls_of_any_store(url: str) -> None:
    with pytest.raises(FormatError, match=r"others need store\.backend"):
        split_store_url(url, any_scheme=True)


@pytest.mark.parametrize("url", ["raw", "s3://", "s3://A_B", "file://", "file:///", "gs://x", "s3:///x"])
def test_bad_store_urls(url: str) -> None:
    with pytest.raises(FormatError, match="must be s3://"):
        split_store_url(url)
