"""Real objects of Kafka's remote tier, unpacked: see ``tests/data/kip405/README.md``."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from tests.support.paths import ROOT
from tidemark.kafka_log import scan_batches
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.kafka_log.transactions import producer_snapshot
from tidemark.kafka_tier.copies import ListedCopy, TierStore, list_copies
from tidemark.kafka_tier.encryption import private_key
from tidemark.kafka_tier.manifest import CopyName, Kind
from tidemark.store import Store
from tidemark.store.local import LocalStore

NAMES = ("plain", "compressed", "encrypted", "both", "epochs")
ARCHIVES = ROOT / "tests" / "data" / "kip405"

Row = dict[str, Any]


@dataclass(frozen=True)
class Fixture:
    """An unpacked archive."""

    root: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.root / "facts.json").read_text())
        return loaded

    @property
    def prefix(self) -> str:
        return str(self.facts["key_prefix"])

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def key_files(self) -> dict[str, Path]:
        return {path.name.partition(".")[0]: path for path in (self.root / "keys").glob("*.private.pem")}

    @property
    def topics(self) -> list[str]:
        return sorted({partition["topic"] for partition in self.facts["partitions"]})

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """The broker's answers, by partition."""
        found: list[dict[str, Any]] = self.facts["partitions"]
        return found

    def partition(self, topic: str, number: int = 0) -> dict[str, Any]:
        return next(one for one in self.partitions if (one["topic"], one["partition"]) == (topic, number))

    def tier(self, store: Store | None = None, *, keys: bool = True) -> TierStore:
        pairs = {name: private_key(path) for name, path in self.key_files.items()} if keys else {}
        return TierStore(store or LocalStore(self.objects), self.prefix, pairs)

    def copies(self, topic: str) -> list[ListedCopy]:
        return list_copies(self.tier(), topic)[0]

    def path(self, copy: ListedCopy, kind: Any) -> Path:
        return self.objects / copy.name.key(self.prefix, kind)

    def expected(self, topic: str, number: int, isolation: str) -> list[Row]:
        """The records as a consumer reads them below the end of the tier, by offset."""
        end = self.partition(topic, number)["latest_tiered"]
        return [row for row in self.all_expected(topic, number, isolation) if row["offset"] <= end]

    def all_expected(self, topic: str, number: int, isolation: str) -> list[Row]:
        """All records as a consumer reads them, by offset."""
        body = (self.root / "expected" / f"{topic}-{number}.{isolation}.jsonl.zst").read_bytes()
        lines = zstandard.ZstdDecompressor().stream_reader(body).read().decode().splitlines()
        return list(map(json.loads, lines))


def unpack(name: str, folder: Path) -> Fixture:
    """The archive ``name`` below ``folder``."""
    body = zstandard.ZstdDecompressor().stream_reader((ARCHIVES / f"{name}.tar.zst").read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        archive.extractall(folder, filter="data")
    return Fixture(folder / name)


def kafka_id(text: str) -> str:
    """Kafka's notation of a UUID."""
    return base64.urlsafe_b64encode(uuid.UUID(text).bytes).decode().rstrip("=")


def rows_of(table: pa.Table) -> list[Row]:
    """Decoded rows in the form of ``expected``."""
    return records_of(table.to_pylist())


def records_of(rows: Iterable[Row]) -> list[Row]:
    """Rows of a table in the form of ``expected``."""
    return [
        {
            "offset": row["kafka_offset"],
            "timestamp": round(row["kafka_timestamp"].timestamp() * 1000),
            "timestamp_type": int(row["kafka_timestamp_type"] == "append"),
            "leader_epoch": row["kafka_leader_epoch"],
            "key": None if row["kafka_key"] is None else row["kafka_key"].hex(),
            "value": None if row["kafka_value"] is None else row["kafka_value"].hex(),
            "headers": [
                [one["key"], None if one["value"] is None else one["value"].hex()] for one in row["kafka_headers"]
            ],
        }
        for row in rows
    ]


def bare(row: Row) -> Row:
    """An expected record without its topic and partition."""
    names = ("offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers")
    return {name: row[name] for name in names}


def made_copy(name: CopyName, log: bytes, *, chunk: int = 4 << 20, compress: bool = False) -> dict[Kind, bytes]:
    """The objects of a copy of a ``log`` as the plugin writes them; it has no transactions, and one leader epoch."""
    indexes, headers = DerivedIndexes(name.base, len(log)), list(scan_batches([log], "log", name.base))
    for header in headers:
        indexes.add(header, b"")
    files = dict(indexes.files())
    epoch = headers[0].leader_epoch
    bodies = [files["index"], files["timeindex"], producer_snapshot(()), f"0\n1\n{epoch} 0\n".encode()]
    chunks = [log[at : at + chunk] for at in range(0, len(log), chunk)]
    index: dict[str, Any] = {"originalChunkSize": chunk, "originalFileSize": len(log)}
    if compress:
        chunks = [zstandard.ZstdCompressor().compress(one) for one in chunks]
        assert len(chunks) == 1, "the packed form of several sizes is tested elsewhere"
        sizes = b"".join(number.to_bytes(4, "big") for number in (1, len(chunks[0])))
        frame = base64.b64encode(zstandard.ZstdCompressor().compress(sizes)).decode()
        index |= {"type": "variable", "transformedChunks": frame}
    else:
        index |= {"type": "fixed", "transformedChunkSize": chunk, "finalTransformedChunkSize": len(chunks[-1])}
    spans: dict[str, Any] = {"transaction": None}
    at = 0
    for kind, body in zip(("offset", "timestamp", "producerSnapshot", "leaderEpoch"), bodies, strict=True):
        spans[kind] = {"position": at, "size": len(body)}
        at += len(body)
    place = {"topicId": name.topic_id, "topicPartition": {"topic": name.topic, "partition": name.partition}}
    manifest = {
        "version": "1",
        "chunkIndex": index,
        "segmentIndexes": spans,
        "compression": compress,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {"topicIdPartition": place, "id": name.segment_id},
            "startOffset": name.base,
            "endOffset": headers[-1].last_offset,
            "maxTimestampMs": max(header.max_timestamp for header in headers),
            "brokerId": 1,
            "eventTimestampMs": 1_790_000_000_000,
            "segmentLeaderEpochs": {str(epoch): name.base},
        },
    }
    return {"log": b"".join(chunks), "indexes": b"".join(bodies), "rsm-manifest": json.dumps(manifest).encode()}
