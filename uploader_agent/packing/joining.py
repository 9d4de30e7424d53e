"""Joins a leadership to its tails: this broker's entry in the stored head, and the tails of former leaders.

The heads of the leaderships that ``offset.wm`` lists are read after the claim, since by then they have everything that
a reader accepted from them before the claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import structlog

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.raw import head as format_
from tidemark.formats.raw.head import Head, HeadEntry
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.slots import run_all
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)

TheirHeads = Mapping[int, Head | Exception | None]
"""Other brokers' heads by node id: None without a head, or the error of reading it."""


def read_heads(head: BrokerHead, partitions: Collection[LedPartition], runtime: Runtime) -> TheirHeads:
    """The heads of all brokers that may have packed unsealed offsets of claimed ``partitions``, each read once."""
    heads: dict[int, Head | Exception | None] = {}
    brokers = {broker for partition in partitions for _, broker in partition.uploader.other_tails()}
    run_all([partial(_read_head, head, broker, heads) for broker in brokers], runtime)
    return heads


def join(partition: LedPartition, head: BrokerHead, broker: int, theirs: TheirHeads) -> None:
    """Join the partition to the tails that this broker, ``broker``, and former leaders have packed.

    Raises the error of a head that could not be read.
    """
    inherited: list[HeadEntry] = []
    for epoch, other in partition.uploader.other_tails():
        stored = head.entries if other == broker else theirs[other]
        if isinstance(stored, Exception):
            raise stored
        entries = stored.by_key if isinstance(stored, Head) else stored or {}
        key = partition.entry_key._replace(epoch=epoch)
        inherited += [entries[key]] if key in entries else []
    own = head.entries.get(partition.entry_key)
    partition.packed.join(head.version, own, inherited, partition.uploader.lineage())


def _read_head(head: BrokerHead, broker: int, heads: dict[int, Head | Exception | None]) -> None:
    """Add another broker's head to ``heads``; a damaged head counts as none, which only costs bytes."""
    try:
        version = format_.load(head.store, head.control, broker)
        heads[broker] = version.value if version else None
    except LaterFormat as error:
        heads[broker] = error
    except FormatError as error:
        logger.warning("head_not_read", broker=broker, error=str(error))
        heads[broker] = None
    except Exception as error:  # noqa: BLE001 - only the partitions that need this head fail
        heads[broker] = error
