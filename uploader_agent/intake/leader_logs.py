"""Leaders' statements about their logs: a broker is asked for all its partitions at once, an epoch of each at a time.

Each epoch's end is the start of the next one, so a lineage is walked from its newest epoch down to the log start.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.broker.admin import BrokerUnavailable, Leader
from uploader_agent.intake.fetching import Cluster, EpochAsked, EpochEnd, PartitionRefused, Refusal


class LogAsked(NamedTuple):
    """A leader that is asked for its log, and the lineage of the batches that are ``known`` already."""

    leader: Leader
    known: Lineage


class LeaderLog(NamedTuple):
    """A leader's log: its offsets ``[start, end)`` and its lineage."""

    start: int
    end: int
    lineage: Lineage


async def leader_logs(
    cluster: Cluster, broker: int, asked: Mapping[TopicPartition, LogAsked]
) -> dict[TopicPartition, LeaderLog | PartitionRefused | BrokerUnavailable]:
    """The logs that ``broker`` leads, or the reason for which one is not known."""
    found: dict[TopicPartition, LeaderLog | PartitionRefused | BrokerUnavailable] = {}
    failure = BrokerUnavailable(f"broker {broker} leaves the partition out of its answer")
    try:
        await _ask_for_logs(cluster, broker, asked, found)
    except BrokerUnavailable as error:
        failure = error
    return found | dict.fromkeys(asked.keys() - found.keys(), failure)


async def _ask_for_logs(
    cluster: Cluster,
    broker: int,
    asked: Mapping[TopicPartition, LogAsked],
    found: dict[TopicPartition, LeaderLog | PartitionRefused | BrokerUnavailable],
) -> None:
    current = {tp: log.leader.led.leader_epoch for tp, log in asked.items()}
    walks: dict[TopicPartition, _Walk] = {}
    for tp, start in (await cluster.log_starts(broker, current)).items():
        if isinstance(start, PartitionRefused):
            found[tp] = start
        else:
            walks[tp] = _walk(tp, asked[tp], start)
    epochs = {tp: next(walk) for tp, walk in walks.items()}
    while epochs:
        ends = await cluster.epoch_ends(broker, {tp: EpochAsked(current[tp], epoch) for tp, epoch in epochs.items()})
        asked_for, epochs = epochs.keys(), {}
        for tp in asked_for & ends.keys():
            walk, end = walks[tp], ends[tp]
            try:
                epochs[tp] = walk.throw(end) if isinstance(end, PartitionRefused) else walk.send(end)
            except PartitionRefused as refused:
                found[tp] = refused
            except StopIteration as end_of_walk:
                found[tp] = end_of_walk.value


_Walk = Generator[int, EpochEnd, LeaderLog]
"""Yields each epoch to ask for, and is sent its end."""


def _walk(tp: TopicPartition, asked: LogAsked, start: int) -> _Walk:
    """The walk down a lineage, to the log ``start`` or to an epoch that is known with the same start.

    An epoch has one leader, and who has batches of it had them from that leader, behind what it had before. So two logs
    with the same start of an epoch had the same lineage below it, and the known one stands for the rest. That holds
    only where it reaches down to the log start, and for epochs that begin below the end of the known batches: nothing
    is fetched there any more, so it does not matter if compaction has moved starts in the leader's log since.

    Raises PartitionRefused if the leader has not begun its epoch.
    """
    current = asked.leader.led.leader_epoch
    known = asked.known.since(start).entries if asked.known.epoch_at(start) is not None else ()
    epoch, log_end = yield current
    if epoch != current:
        raise PartitionRefused(tp, Refusal.LATER, f"the leader's log has not begun epoch {current}")
    entries: list[tuple[int, int]] = []  # the newest first
    while epoch > 0:
        below, begun = yield epoch - 1
        if entries and begun >= entries[-1][1]:
            break  # the log has no such epoch: the answer repeats the start of its first one
        if begun < 0:
            break
        entries.append((epoch, begun))
        if begun <= start:
            break
        if (epoch, begun) in known:
            older = known[: known.index((epoch, begun))]
            entries += [(before, max(first, start)) for before, first in reversed(older)]
            break
        epoch = below
    else:
        entries.append((0, start))  # nothing is below epoch 0 to ask for
    lineage = Lineage.of(reversed(entries), f"{tp}: the lineage that broker {asked.leader.broker} states")
    return LeaderLog(start, log_end, lineage)
