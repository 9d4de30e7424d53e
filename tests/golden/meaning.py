"""What the corpus means, as plain values: everything that people and programs learn from a deployment's objects.

Times, random names and sizes are left out, so that a corpus that is made again means the same.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.golden.deployment import CLUSTER, PREFIX, deployment_of
from tests.spark.inline import Inline
from tidemark import Storage, read_range
from tidemark.backfill.report import read_report
from tidemark.cli.continuity import accounts_of
from tidemark.decode.rowhash import row_hash_sum
from tidemark.decode.schema import SCHEMA
from tidemark.endpoints import resolver_of
from tidemark.erasure.reports import ErasureReport
from tidemark.erasure.requests import all_requests
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw.erasure import Approved
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.raw.tombstones import PackTombstone
from tidemark.formats.table.live_landing import read_landing
from tidemark.inspection.offset_lineage import derivation_of
from tidemark.monitoring.incident_store import read_incidents
from tidemark.planning.maintenance.retention import RetentionReport
from tidemark.raw import masks, tombstones
from tidemark.raw.heads import read_head
from tidemark.raw.packs import chain, read_footer, read_range_bytes
from tidemark.raw_topic import RawTopic
from tidemark.schemas.merge import read_state
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, live_files, open_delta, open_topic_table
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.state_table import StateTable
from tidemark.topics import Deployment
from tidemark_airflow.assets.outbox import read_published
from tidemark_spark.audit.run import audit
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.mirror import check_mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable

PLACE: Final = ("kafka_incarnation", "kafka_partition", "kafka_offset")
Plain = dict[str, Any]


def meaning(topics: Path) -> Plain:
    """The meaning of all objects of the deployment of this topics file."""
    deployment = deployment_of(topics)
    raw, control = open_store("s3://raw", deployment.store), ControlKeys(PREFIX, CLUSTER)
    return {
        "topics": {topic.topic: of_topic(open_topic_table(deployment, topic), topics) for topic in deployment.topics},
        "packs": of_packs(raw, control),
        "people": of_people(raw, control, deployment),
        "deployment": of_deployment(deployment),
    }


def of_topic(table: TopicTable, topics: Path) -> Plain:
    """A topic: its raw data and its tables."""
    told: Plain = {"raw": of_raw(table, topics)}
    if committed_ledger(table).n:
        told |= of_table(table)
    if table.topic.state is not None:
        told["state"] = of_state(table)
    return told


def of_raw(table: TopicTable, topics: Path) -> Plain:
    """The newest incarnation in raw, by partition; and what retention, gaps and erasures have left of it."""
    topic = RawTopic(table)
    incarnations = topic.incarnations
    place, cluster = incarnations[-1].place, table.topic.cluster
    told: Plain = {"places": ["@" if "@" in known.place else known.place for known in incarnations]}
    for (incarnation, number), entry in sorted(topic.entries.items()):
        endpoint = resolver_of(table.deployment.raw).resolve(cluster, table.topic.topic, number)
        keys = PartitionKeys(endpoint, cluster, place, number)
        store = open_store(endpoint.store, table.deployment.store)
        stored = store.list(keys.folder)
        known = topic.watermark(topic.partition((incarnation, number)))
        told[str(number)] = {
            "incarnation": incarnation,
            "foreign": list(known.foreign_epochs) if known else [],
            "next": entry.next_offset,
            "end": entry.least_stored_end,
            "gaps": [[gap.start, gap.end, gap.reason] for gap in entry.gaps],
            "files": sorted(info.key.removeprefix(keys.folder) for info in stored),
            "removed": [[stone.start, stone.end] for stone in tombstones.listed(PartitionStore(store, keys))],
            "records": of_records(table, number, topics),
        }
    return told


def of_records(table: TopicTable, partition: int, topics: Path) -> Plain | None:
    """What a consumer of the remote tier reads of a partition; None if its prefix was removed."""
    if table.topic.topic == "lost":
        return None
    storage = Storage.from_topics(topics, table.topic.cluster)
    told: Plain = {}
    for level in ("read_committed", "read_uncommitted"):
        rows = read_range(table.topic.topic, partition, storage=storage, isolation_level=level, on_gap="skip")
        offsets = rows["kafka_offset"].to_numpy()
        told[level] = {
            "rows": rows.num_rows,
            "first": int(offsets.min()),
            "last": int(offsets.max()),
            "hash": hash_of(rows),
        }
    return told


def of_table(table: TopicTable) -> Plain:
    """A table: its ledger, the classes of all offsets, its rows, their lineage, and what an audit finds."""
    delta = open_delta(table)
    assert delta is not None
    evidence = EffectiveEvidence.of(table)
    ledger, accounts = evidence.ledger, accounts_of(evidence)
    live = live_files(delta)
    rows = [(file.dt, rows_of(table.store, f"{table.keys.root}/{file.path}")) for file in live]
    refused = sorted({row.file for row in evidence.of_class("quarantined") if row.file})
    quarantine = [rows_of(table.store, f"{table.keys.quarantine}/{file}") for file in refused]
    report = audit(table, Inline())
    schema = read_state(table.store, table.keys)
    by_registry = {"other_settings"} if schema is not None else set()  # its address is a setting
    return {
        "ledger": {
            "n": ledger.n,
            "kind": ledger.kind,
            "settings": schema is not None or ledger.configuration == table.topic.digest,
            "dates": {dt: [date.state, date.rows, date.late_rows] for dt, date in ledger.dates.items()},
            "partitions": [of_state_of_partition(part.model_dump(mode="json")) for part in ledger.partitions],
            "columns": ledger.field_ids,
            "masks": ledger.masks,
        },
        "classes": [
            {name: count for name, count in part["classes"].items() if count}
            | {"next": part["next_offset"]}
            | ({"truncated": part["truncated"]} if part["truncated"] else {})
            for part in accounts["partitions"]
        ],
        "balanced": accounts["balanced"],
        "rows": {dt: of_rows([part for day, part in rows if day == dt]) for dt in sorted({day for day, _ in rows})},
        "quarantine": [
            [row["kafka_partition"], row["kafka_offset"], row["reason"]]
            for part in quarantine
            for row in part.to_pylist()
        ],
        "lineage": [of_lineage(table, evidence, part.key, part.next_offset) for part in ledger.partitions],
        "audit": {
            "findings": [[found.kind, found.detail] for found in report.findings],
            "partitions": [known(part.model_dump(mode="json", exclude=by_registry)) for part in report.partitions],
        },
        "published": read_published(table).value.n,
        "schema": schema
        and [
            schema.value.adopted.version,
            schema.value.newest.version,
            [change.kind for change in schema.value.adopted.changes],
        ],
        "reports": of_reports(table),
    }


def of_state_of_partition(state: Plain) -> Plain:
    """A partition in the ledger, without topic id and times."""
    gaps = [[gap["start"], gap["end"], gap["reason"]] for gap in state["gaps"]]
    return known({name: value for name, value in state.items() if name not in {"topic_id", "as_of"}}) | {"gaps": gaps}


def known(found: Plain) -> Plain:
    """``found`` without what later versions have added and it lacks."""
    return {name: value for name, value in found.items() if value or name not in {"restores", "remote_tier"}}


def of_lineage(table: TopicTable, evidence: EffectiveEvidence, key: tuple[int, int], end: int) -> Plain:
    """Where the offsets of a partition come from."""
    found = derivation_of(table, evidence, key, 0, end)
    return {
        "rows": [
            [row.start, row.end, row.offset_class, row.rows, row.dt, row.byte_start, row.byte_end] for row in found.rows
        ],
        "segments": sorted(
            ["pack"] if part.packed else [part.key.rpartition("/")[2], part.present, part.origin, part.crc32c]
            for part in found.segments
        ),
    }


def of_rows(parts: Iterable[pa.Table]) -> Plain:
    """The number of rows; the sum of the hashes that evidence has; and a digest of all columns, in order."""
    plain = [row for part in parts for row in part.to_pylist()]
    plain.sort(key=lambda row: tuple(row[name] for name in PLACE))
    digest = hashlib.sha256(repr([sorted(row.items()) for row in plain]).encode()).hexdigest()
    total = 0
    for part in parts:
        total = combine(total, int(hash_of(part.select(SCHEMA.names)), 16))
    return {"rows": len(plain), "hash": f"{total:032x}", "columns": digest[:32]}


def rows_of(store: Store, key: str) -> pa.Table:
    """The rows of a Parquet file."""
    return pq.ParquetFile(io.BytesIO(store.get(key).body)).read()


def hash_of(rows: pa.Table) -> str:
    """The sum of the rows' hashes."""
    total = 0
    for batch in rows.cast(SCHEMA).to_batches():
        total = combine(total, row_hash_sum(batch))
    return f"{total:032x}"


def of_state(table: TopicTable) -> Plain:
    """A state table and its reserve."""
    state = StateTable.open(table)
    ledger = state.committed()
    assert ledger is not None
    shown = [rows_of(state.store, f"{state.root}/{leaf.path}") for leaf in ledger.leaves if leaf.path]
    kept = [rows_of(state.store, leaf.reserve) for leaf in ledger.leaves if leaf.reserve]
    return {
        "n": ledger.n,
        "of": ledger.of.n,
        "through": [[part.incarnation, part.partition, part.next_offset] for part in ledger.through],
        "rows": sorted(repr(sorted(row.items())) for part in shown for row in part.to_pylist()),
        "reserve": sum(part.num_rows for part in kept),
    }


def of_reports(table: TopicTable) -> Plain:
    """Reports on the table, by kind."""
    store, keys = table.store, table.keys
    names = {info.key.removeprefix(keys.reports).partition("/")[0] for info in store.list(keys.reports)}
    retention = [
        RetentionReport.load(store, info.key) for on in ("table", "raw") for info in store.list(keys.retention(on))
    ]
    erasures = [ErasureReport.load(store, info.key) for info in store.list(keys.erasures)]
    return {
        "backfills": [
            [report.state, report.progress and report.progress.total]
            for report in (read_report(table, name) for name in sorted(names))
        ],
        "retention": [
            [
                report.subject,
                [[date.dt, date.rows] for date in report.dates],
                [[part.partition, part.start, part.end, part.removed_to] for part in report.partitions],
            ]
            for report in retention
        ],
        "erasures": [[report.masked, report.rows, [part.status for part in report.requests]] for report in erasures],
    }


def of_packs(raw: Store, control: ControlKeys) -> Plain:
    """The packs: each range's bytes are proved; and the chains that the head leads to."""
    packs = [info for info in raw.list(control.tails) if control.pack_of(info.key)]
    ranges = [packed for info in packs for packed in read_footer(raw, info.key, info.size)]
    stored = read_head(ClusterStore(raw, control), 1)
    assert stored is not None
    return {
        "ranges": sorted(
            [
                packed.range.topic,
                packed.range.partition,
                packed.range.first,
                packed.range.next,
                len(read_range_bytes(raw, packed)),
            ]
            for packed in ranges
        ),
        "chains": sorted(
            [
                entry.topic,
                entry.partition,
                [[part.range.first, part.range.next] for part in chain(ClusterStore(raw, control), entry, 0)],
            ]
            for entry in stored.value.entries
        ),
    }


def of_people(raw: Store, control: ControlKeys, deployment: Deployment) -> Plain:
    """What people have said: acknowledgements, requests for erasure, words that give up packs; and what came of it."""
    cluster = ClusterStore(raw, control)
    words = cluster.acknowledgements("clicks", 0)
    index = masks.read_index(cluster, "orders")
    assert index is not None
    stones = [PackTombstone.load(raw, info.key) for info in raw.list(control.pack_tombstones)]
    return {
        "acknowledged": [[word.start, word.end, word.by, word.reason] for word in words],
        "requests": sorted(
            [isinstance(found, Approved), found.withdrawal is not None, len(found.request.values), found.request.reason]
            for found in all_requests(cluster)
        ),
        "masked": [
            [mask.number, mask.partition, sorted(offset for part in read.epochs for offset in part.offsets)]
            for mask in index.value.masks
            for read in [masks.read_mask(raw, index.value.key_of(control, mask))]
        ],
        "buried": [
            [
                number,
                sorted(
                    segment.base_offset
                    for record in tombstones.read_buried(cluster, "orders", number)
                    for segment in record.segments
                ),
            ]
            for number in (0, 1)
        ],
        "given up": [
            [stone.topic, stone.by, [[part.partition, part.spans] for part in stone.partitions]] for stone in stones
        ],
    }


def of_deployment(deployment: Deployment) -> Plain:
    """The state of the cluster: incidents, the live landing, the tables in the catalog."""
    keys, lake = deployment.deployment_keys(CLUSTER), open_store(deployment.lake_store, deployment.store)
    landing = read_landing(lake, keys.landing).value
    assert landing is not None
    incidents = read_incidents(deployment, CLUSTER).incidents
    [catalog] = deployment.catalogs
    listed: dict[str, Any] = {}
    for topic in deployment.topics:
        table = open_topic_table(deployment, topic)
        mirrored = MirroredTable(table, catalog, open_catalog(deployment, catalog))
        if topic.cluster == CLUSTER and mirrored.load():
            version = mirrored.listed()
            snapshots = len(mirrored.iceberg.metadata.snapshots)
            listed[topic.topic] = [version and version.version, snapshots, check_mirror(table, catalog, mirrored)]
    return {
        "incidents": sorted(
            [incident.kind, incident.key.partition("s3://")[0], incident.open] for incident in incidents
        ),
        "landing": [[topic.topic, topic.status] for topic in landing.topics],
        "catalog": listed,
    }


def plain(value: Any) -> Any:
    """``value`` as it is after it was JSON."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
