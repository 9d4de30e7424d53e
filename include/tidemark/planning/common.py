"""Parts that plans share: the ledger that a plan follows, its settings, code and identity, its masks, and its object.

A plan is an object in the store, which is written before anything else of its run, and never changed, but for its time:
a rebuild in steps renews that, see docs/architecture.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tidemark.errors import ConfigError
from tidemark.formats.table.ledger import Ledger, new_attempt
from tidemark.formats.table.plan import RunPlan, StoredMasks
from tidemark.intervals import Intervals
from tidemark.raw.masks import mask_of
from tidemark.raw_topic import RawTopic
from tidemark.store import open_store, put_once
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import offsets_of

Key = tuple[int, int]

CODE_SOURCES: Final = (
    "tidemark/decode",
    "tidemark/formats/table/base_columns.py",
    "tidemark/formats/raw/hashsum.py",
    "tidemark/kafka_log",
    "tidemark/parsers",
    "tidemark_spark/convert",
)
"""Packages and modules whose change may change a row, its class, its date, or the bytes of a file.

Their installed files are read without an import: plans are also made where Spark's libraries are not installed.
"""


def following(
    table: TopicTable, ledger: Ledger, attempt: int | None = None, *, created_at: datetime | None = None
) -> dict[str, Any]:
    """The fields of a ``RunPlan`` that all kinds share; a new attempt unless one is given."""
    topic = table.topic
    return {
        "attempt": new_attempt() if attempt is None else attempt,
        "cluster": topic.cluster,
        "topic": topic.topic,
        "table": topic.table,
        "generation": ledger.generation,
        "ledger_n": ledger.n,
        "ledger_attempt": ledger.attempt,
        "configuration": topic.digest,
        "code": code_digest(),
        "layout": topic.parquet.layout,
        "field_ids": ledger.field_ids,
        "accepts": table.accepts,
        "masks": ledger.masks,
        "created_at": created_at or table.store.now(),
    }


def spared_offsets(raw: RawTopic, standing: EffectiveEvidence) -> dict[Key, Intervals]:
    """The masked offsets by partition that have another class than ``erased`` in the table's evidence.

    Their records wait for the erasure, or had left the table before. A run over the table reads them as ever. Raises
    FormatError.
    """
    masks = raw.masks_of(standing.ledger, pending=False)
    if not masks:
        return {}
    erased = offsets_of(standing.of_class("erased"))
    return {
        key: Intervals((offset, offset + 1) for offset in masked_offsets(standing.table, stored))
        - erased.get(key, Intervals())
        for key, stored in masks.items()
    }


def masked_offsets(table: TopicTable, stored: StoredMasks, approvals: Collection[str] | None = None) -> list[int]:
    """The offsets of the ``stored`` masks, of all leader epochs, ascending.

    With ``approvals``, only those of masks all of whose approvals are among them.
    """
    store = open_store(stored.store, table.deployment.store)
    masks = [mask_of(store, key) for key in stored.keys]
    if approvals is not None:
        masks = [mask for mask in masks if set(mask.approvals) <= set(approvals)]
    return sorted({offset for mask in masks for part in mask.epochs for offset in part.offsets})


def write_plan(table: TopicTable, plan: RunPlan) -> str:
    """Write ``plan`` under its attempt and return the key.

    Raises:
        PreconditionFailed: the attempt has another plan already; read that one.
    """
    key = table.keys.attempt(plan.attempt)
    put_once(table.store, key, plan.to_bytes())
    return key


def read_plan(table: TopicTable, key: str) -> RunPlan:
    """The plan under ``key``. Raises NotFound, or FormatError for an object that is not a plan."""
    return RunPlan.load(table.store, key)


def find_plan(table: TopicTable, attempt: int) -> RunPlan | None:
    """The plan of ``attempt``, or None."""
    return RunPlan.load_or_none(table.store, table.keys.attempt(attempt))


@cache
def code_digest() -> str:
    """The digest of the code that makes files: 16 hexadecimal digits of the SHA-256 over :data:`CODE_SOURCES`, by path.

    These turn raw segments into rows and files, and no others do. Raises ConfigError if one is missing.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_source_files()):
        digest.update(f"{name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _source_files() -> Iterator[tuple[str, Path]]:
    """The Python files of :data:`CODE_SOURCES`, each with its name below the installation."""
    for source in CODE_SOURCES:
        root = _root(source.partition("/")[0])
        place = root / source
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield path.relative_to(root).as_posix(), path


def _root(package: str) -> Path:
    """The directory that has ``package``."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigError("this installation", [(package, "is missing: install Tidemark's wheel whole")])
    return Path(spec.origin).parent.parent
