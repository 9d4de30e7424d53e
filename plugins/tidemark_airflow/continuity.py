"""Gaps that nobody has been told of: found in ledger and watermarks, told once, recorded, and the task turns red.

The order is what makes it once and never lost: deliver, record with the run's name, raise. Killed before the record,
it is delivered again; killed after it, the retry of the same run finds its own record and still turns red.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark.ledger import Ledger, Published
from tidemark.stored import utc_now
from tidemark.table import Lake
from tidemark_airflow.alerts import OpenGaps
from tidemark_airflow.outbox import read_published, update_published
from tidemark_airflow.pending import OpenGap


def open_gaps(ledger: Ledger, seen: Iterable[OpenGap]) -> dict[str, OpenGap]:
    """The gaps of the ledger, and those that the watermarks have beyond it, by name."""
    landed = (OpenGap.of(one.incarnation, one.partition, gap) for one in ledger.partitions for gap in one.gaps)
    return {gap.name: gap for gap in (*seen, *landed)}


def describe(topic: str, gap: OpenGap) -> str:
    """The gap in one line: topic, partition, offsets, reason."""
    name = f"{topic}-{gap.partition}" + (f" (incarnation {gap.incarnation})" if gap.incarnation else "")
    return (
        f"{name}: offsets {gap.start} to {gap.end - 1} ({gap.end - gap.start}) are missing: {gap.reason}, known since "
        f"{gap.detected_at:%Y-%m-%d %H:%M:%S} UTC; the partition waits until they are uploaded or acknowledged"
    )


def tell(lake: Lake, ledger: Ledger, seen: Iterable[OpenGap], run: str, deliver: Callable[[str, str], None]) -> None:
    """Tell a person of each open gap that nobody was told of.

    Raises:
        OpenGaps: there were some; AirflowFailException's kind, so the task is not tried again.
    """
    gaps = open_gaps(ledger, seen)
    alerted = read_published(lake).value.alerted
    untold = [name for name in gaps if name not in alerted]
    mine = [name for name in gaps if alerted.get(name) == run]
    text = "\n".join(describe(lake.topic.topic, gaps[name]) for name in sorted({*untold, *mine}))
    if untold:
        deliver(f"{lake.topic.cluster}/{lake.topic.topic}: {len(untold)} gaps", text)
        update_published(lake, lambda before: before.model_copy(update={"alerted": _told(before, ledger, untold, run)}))
    if text:
        raise OpenGaps(text)


def _told(before: Published, ledger: Ledger, untold: Iterable[str], run: str) -> dict[str, str]:
    """Who told of what, without the gaps that the ledger has passed."""
    states = {f"{one.incarnation}-{one.partition}": one.next_offset for one in ledger.partitions}
    kept = {name: by for name, by in before.alerted.items() if _start(name) >= states.get(name.rpartition("-")[0], 0)}
    return kept | dict.fromkeys(untold, run)


def _start(name: str) -> int:
    return int(name.rpartition("-")[2])


def settle(lake: Lake, *, n: int | None = None, attempt: int = 0, settled: str = "") -> None:
    """Move the outbox pointer to ledger ``n``, and record the watermarks in which there was nothing to land."""
    if n is None and not settled:
        return

    def change(before: Published) -> Published:
        update: dict[str, object] = {}
        if n is not None and n > before.n:
            update |= {"n": n, "attempt": attempt}
        if settled:
            update |= {"settled": settled, "settled_at": utc_now()}
        return before.model_copy(update=update)

    update_published(lake, change)
