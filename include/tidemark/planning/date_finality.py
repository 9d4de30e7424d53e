"""The rule by which a date of a table is complete, so that no further rows of it are expected. Pure.

A date may close once its end, in the topic's time zone, and the topic's ``lateness`` have passed. It closes as *final*
if each partition is done. A partition is done if its leader's entry in the watermark index was observed after that time
and

* the ledger has passed its log end: all that was on the broker then has landed, even above the high watermark; or
* the ledger has passed all segments before the active one, and the active one begins after the date. So a partition
  that is always written to does not have to become quiet. Where it begins is judged by Kafka's timestamps. Where a
  parser's event time gives ``dt``, a record may come up to ``lateness`` after its event: there the active segment must
  begin after that time, too.

A partition is done as well if it has landed up to a high watermark that a head's broker observed after that time: see
``as_of`` in the ledger. So a partition that is packed closes its dates on time, however steadily it gets records.

If some partition is not done, the date stays open for the topic's time ``overdue``. That time counts from when the
date could first have closed, or from when rows of it last landed if that is later, so that a date does not close while
old records are being landed. Then it closes as *final_incomplete*, with the offsets that were outstanding. It becomes
final once all partitions are done. Rows that land in a closed date reopen it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.ledger import Closing, DateState, Ledger
from tidemark.topics import TopicSettings


def closing(
    ledger: Ledger,
    entries: Mapping[tuple[int, int], IndexEntry],
    topic: TopicSettings,
    now: datetime,
    *,
    bare: Collection[tuple[int, int]] = (),
) -> dict[str, Closing]:
    """The dates of ``ledger`` that close at ``now``, given the index entries by (incarnation, partition).

    ``bare`` are partitions without a watermark: nothing of them was ever uploaded, so there is nothing to land.
    """
    landed = {key: entry.next_offset for key, entry in entries.items() if key in bare}
    landed |= {state.key: state.next_offset for state in ledger.partitions}
    as_of = {state.key: state.as_of for state in ledger.partitions if state.as_of is not None}
    closings: dict[str, Closing] = {}
    for dt, state in sorted(ledger.dates.items()):
        if not may_close(dt, state, topic, now):
            continue
        end = end_of(dt, topic.zone)
        due = end + topic.lateness
        done = {key for key, at in as_of.items() if at >= due}
        waiting = waiting_for(landed, entries, done, due if topic.parser.event_time else end, due)
        unfinished, _ = waiting
        if not unfinished:
            closings[dt] = Closing(before=state, after=_closed(state, "final", waiting, now))
        elif not state.closed and now >= max(due, state.changed_at or due) + topic.overdue:
            closings[dt] = Closing(before=state, after=_closed(state, "final_incomplete", waiting, now))
    return closings


def may_close(dt: str, state: DateState, topic: TopicSettings, now: datetime) -> bool:
    """True if it is time to look at the date's partitions."""
    return state.state not in {"final", "expired"} and now >= closes_from(dt, topic)


def closes_from(dt: str, topic: TopicSettings) -> datetime:
    """The earliest time at which the date may close."""
    return end_of(dt, topic.zone) + topic.lateness


def end_of(dt: str, zone: ZoneInfo) -> datetime:
    """The first instant after the date, in UTC: a date may have 23 or 25 hours."""
    return datetime.combine(date.fromisoformat(dt) + timedelta(days=1), time.min, zone).astimezone(UTC)


def waiting_for(
    landed: Mapping[tuple[int, int], int],
    entries: Mapping[tuple[int, int], IndexEntry],
    done: Collection[tuple[int, int]],
    past: datetime,
    due: datetime,
) -> tuple[int, int]:
    """(The number of partitions of the newest incarnation that are not done with a date, their offsets not landed).

    ``landed`` has their next offsets. Partitions in ``done`` have landed all that had been committed at ``due``. An
    entry counts if it was observed at ``due`` or later. Records from the time ``past`` on do not belong to the date.

    A partition is also not done if no agent reports it, although it is known or a higher one exists. Earlier
    incarnations of the topic get no more records.
    """
    known = {*entries, *landed}
    newest = max((incarnation for incarnation, _ in known), default=0)
    width = 1 + max((partition for incarnation, partition in known if incarnation == newest), default=-1)
    partitions = offsets = 0
    for partition in range(width):
        entry, start = entries.get((newest, partition)), landed.get((newest, partition), 0)
        if (newest, partition) in done:
            continue
        if entry is None:
            partitions += 1
        elif not _is_done(entry, start, past, due):
            partitions += 1
            offsets += max(0, entry.log_end_offset - start)
    return partitions, offsets


def _is_done(entry: IndexEntry, landed: int, past: datetime, due: datetime) -> bool:
    if entry.observed_at < due:
        return False
    if landed >= entry.log_end_offset:
        return True
    if entry.active_base_offset is None or landed < entry.active_base_offset:
        return False
    first = entry.active_first_timestamp
    return first is None or first >= round(past.timestamp() * 1000)


def _closed(state: DateState, name: str, waiting: tuple[int, int], now: datetime) -> DateState:
    unfinished, outstanding = waiting
    update = {"state": name, "closed_at": now, "unfinished": unfinished, "outstanding": outstanding}
    return state.model_copy(update=update)
