"""What a leadership goes on from: this broker's entry in the stored head, and the tails of former leaders.

The heads of those that ``offset.wm`` lists are read after the claim: what a reader has accepted from them before the
claim is in place by then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import structlog

from tidemark.errors import FormatError
from tidemark.formats import head as format_
from tidemark.formats.head import Head, HeadEntry
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.slots import run_all
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)

TheirHeads = Mapping[int, Head | Exception | None]
"""Other brokers' heads by node id: None without one, or why it could not be read."""


def read_heads(head: BrokerHead, partitions: Collection[LedPartition], runtime: Runtime) -> TheirHeads:
    """The heads of all who may have packed what is not sealed of claimed ``partitions``, each read once."""
    found: dict[int, Head | Exception | None] = {}
    brokers = {broker for one in partitions for _, broker in one.uploader.other_tails()}
    run_all([partial(_read_head, head, one, found) for one in brokers], runtime)
    return found


def join(partition: LedPartition, head: BrokerHead, broker: int, theirs: TheirHeads) -> None:
    """Let the partition go on from what ``broker``, which is this one, and former leaders have packed.

    Raises what kept a head from being read.
    """
    inherited: list[HeadEntry] = []
    for epoch, other in partition.uploader.other_tails():
        found = head.entries if other == broker else theirs[other]
        if isinstance(found, Exception):
            raise found
        known = found.by_key if isinstance(found, Head) else found or {}
        key = partition.entry_key._replace(epoch=epoch)
        inherited += [known[key]] if key in known else []
    own = head.entries.get(partition.entry_key)
    partition.packed.join(head.version, own, inherited, partition.uploader.lineage())


def _read_head(head: BrokerHead, broker: int, found: dict[int, Head | Exception | None]) -> None:
    """Find another broker's head; a damaged one counts as none, which only costs bytes."""
    try:
        version = format_.load(head.store, head.control, broker)
        found[broker] = version.value if version else None
    except FormatError as error:
        logger.warning("head_not_read", broker=broker, error=str(error))
        found[broker] = None
    except Exception as error:  # noqa: BLE001 - those partitions fail that need it
        found[broker] = error
