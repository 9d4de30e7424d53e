"""The size limit of each kind of object that is read into memory.

Anybody who can write to the store can put anything under a key, and the readers (the triggerer, the page, the watch, a
driver) serve all topics of a deployment. So no object is read into memory without a limit: a larger object is refused
by its size, before its bytes arrive. Each limit is at least ten times what a deployment of 500,000 partitions and 3,000
brokers makes.
"""

from __future__ import annotations

from typing import Final

_MIB: Final = 1 << 20

SMALL: Final = _MIB
"""An object about a single subject: an acknowledgement, a topic's incarnations (150 B each), a scan's status."""

WATERMARK: Final = 4 * _MIB
"""``offset.wm``: 1 KiB, and about 100 B for each gap, range above a gap and leader epoch."""

RESTORE: Final = WATERMARK + _MIB
"""A restore: the ``offset.wm`` that it replaced, and a lineage."""

MANIFEST: Final = 4 * _MIB
"""A segment's manifest: 2 KiB, about 100 B for each leader epoch and open transaction, 16 B for each batch with erased
records."""

WATERMARK_INDEX: Final = 16 * _MIB
"""A broker's watermark index: about 600 B for each partition that it leads, so 27,000 of them; Kafka advises 4,000."""

HEAD: Final = 16 * _MIB
"""A broker's head: about 350 B for each partition that has batches in packs, so 45,000 of them."""

TOMBSTONE: Final = 64 * _MIB
"""A tombstone of one run of retention for a partition: about 1 KiB for each segment."""

MASK: Final = 64 * _MIB
"""A mask of erased offsets: at most a million, about 8 B each; the index of a topic's masks: about 150 B for each."""

ERASURE: Final = 16 * _MIB
"""A request for erasure: about 60 B for each value that is looked for."""

SCHEMA: Final = 16 * _MIB
"""The adopted schema of a registry: the schema twice in base64; registries keep it below 1 MiB."""

LEDGER: Final = 64 * _MIB
"""A ledger: about 300 B for each partition, 150 B for each date, 20 B for each attempt since the last vacuum."""

PLAN: Final = 512 * _MIB
"""A run's plan: about 500 B for each range, and one name for each removed file: in a rebuild, the table's files."""

STEP: Final = 64 * _MIB
"""A step of a rebuild: at most 1,024 tasks, about 300 B for each and for each of its files, one for each date."""

REPORT: Final = 64 * _MIB
"""A report for people (audit, preview, comparison, retention): some 100 B for each date and partition."""

DEPLOYMENT: Final = 256 * _MIB
"""State of all topics of a cluster (incidents, sightings, samples): 200 B for each partition that waits."""

EVIDENCE: Final = 1024 * _MIB
"""Evidence, as compressed Parquet: a fold puts many attempts into one object; about 50 B for each file."""

SEGMENT_INDEX: Final = 1024 * _MIB
"""A segment's ``.index``, ``.timeindex`` or ``.txnindex``: Kafka makes them 10 MiB, or ``segment.index.bytes``."""
