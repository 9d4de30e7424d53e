"""The copy of one topic into a spool, by the followers that a slot has, without anything else of an agent.

As a program, ``python -m tests.uploader_agent.intake.topic_copy --topic orders ...``, it prints a JSON line for each
partition, and fails with 1 if one was not copied, as the agent's commands do.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from tidemark.errors import BrokerError, ConfigError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_admin import client_settings
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.disk.locks import lock_directories
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetching import Cluster, FetchLimits, TopicAnswer, TopicLeaders
from uploader_agent.intake.follower import PartitionFollower
from uploader_agent.intake.replica import Fetcher
from uploader_agent.intake.spool import PartitionSpool

SEGMENT_BYTES: Final = 64 << 20

_REFRESH_SECONDS: Final = 30.0
"""Time after which a copy that follows its topic looks for new partitions."""

_PATIENCE_SECONDS: Final = 60.0
"""Time without a new batch after which a copy that has an end gives up."""


class CopyRow(NamedTuple):
    """A partition's copy: the offsets that the spool has, and the leader's statements as they were last heard."""

    partition: str
    state: str
    from_offset: int | None
    next_offset: int | None
    high_watermark: int | None
    bytes: int
    leader: int | None
    leader_epoch: int | None
    why: str | None


class TopicCopy:
    """Copies the topic ``name`` into ``root``. Without ``follow`` up to the first high watermark of each partition."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        root: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        follow: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the spool.

        Raises:
            BrokerError: the topic does not exist, or may not be described.
            BrokerUnavailable: no broker answers.
            FormatError: the spool holds another incarnation of the topic.
        """
        self._cluster, self._name, self._root, self._follow = cluster, name, root, follow
        self._segment_bytes, self._clock = segment_bytes, clock
        topic = cluster.run(cluster.topics({name})).get(name)
        if isinstance(topic, TidemarkError):
            raise topic
        if topic is None:
            raise BrokerError(f"{name}: there is no such topic, or this user lacks DESCRIBE on it")
        self._topic_id = topic.topic_id
        self.fetcher = Fetcher(cluster, clock)
        self._refresh_at = clock()
        try:
            self._add(topic.leaders)
        except BaseException:
            self.close()
            raise

    def run(self, stopping: Callable[[], bool]) -> None:
        """Copy until all partitions have ended, or ``stopping``.

        Raises:
            BrokerError: a broker refuses for good.
            BrokerUnavailable: no batch came for a minute, and the copy has an end.
            OSError: the spool cannot be written.
        """
        while not stopping() and not all(map(self._is_done, self.fetcher.line)):
            self._ask_for_leaders()
            self.fetcher.turn(self._is_done)
            if not self._follow and self._clock() - self.fetcher.grown_at > _PATIENCE_SECONDS:
                self._give_up()

    def rows(self) -> list[CopyRow]:
        """The state of each partition, in their order."""
        return [self._row(follower) for _, follower in sorted(self.fetcher.followers.items())]

    @property
    def size(self) -> int:
        """The bytes of all partitions in the spool."""
        return sum(follower.spool.size for follower in self.fetcher.line)

    def close(self) -> None:
        """Force the spool to the disk, and close it."""
        with ExitStack() as stack:
            for follower in self.fetcher.line:
                stack.callback(follower.spool.close)
                stack.callback(follower.spool.sync)

    def _add(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            tp = TopicPartition(self._name, partition)
            if tp not in self.fetcher.followers:
                spool = PartitionSpool(self._root, tp, self._topic_id, self._segment_bytes)
                self.fetcher.add(PartitionFollower(tp, self._topic_id, spool))

    def _ask_for_leaders(self) -> None:
        now = self._clock()
        if self.fetcher.asking() or (self._follow and now >= self._refresh_at):
            self._refresh_at = now + _REFRESH_SECONDS
            self.fetcher.learn({self._name}, self._follow_new)

    def _follow_new(self, topics: Mapping[str, TopicAnswer]) -> None:
        topic = topics.get(self._name)
        if isinstance(topic, TopicLeaders) and topic.topic_id == self._topic_id and self._follow:
            self._add(topic.leaders)

    def _is_done(self, follower: PartitionFollower) -> bool:
        """True if nothing is left to copy of a partition."""
        return follower.ended or (not self._follow and self.fetcher.has_reached_goal(follower))

    def _give_up(self) -> None:
        waiting = [follower for follower in self.fetcher.line if not self._is_done(follower)]
        reasons = {str(follower.error) for follower in waiting if follower.error} or {"brokers do not answer"}
        names = ", ".join(str(follower.tp) for follower in waiting)
        raise BrokerUnavailable(f"{names}: no batch came for {_PATIENCE_SECONDS:g} s: {'; '.join(sorted(reasons))}")

    def _row(self, follower: PartitionFollower) -> CopyRow:
        spool, leader = follower.spool, follower.leader
        copied = not self._follow and not follower.ended and self.fetcher.has_reached_goal(follower)
        return CopyRow(
            str(follower.tp),
            "copied" if copied else follower.state.value,
            spool.start,
            spool.end,
            follower.high_watermark,
            spool.size,
            leader.broker if leader else None,
            leader.led.leader_epoch if leader else None,
            str(follower.error) if follower.error and not copied else None,
        )


def main() -> None:
    """Carry out the command line. An expected error becomes a message and an exit code."""
    try:
        sys.exit(_copy(_parsed()))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (TidemarkError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--to", required=True, type=Path, help="the spool, which is made or continued")
    parser.add_argument("--config", type=Path, help="YAML with kafka-python's settings")
    parser.add_argument("--rack", default="")
    parser.add_argument("--follow", action="store_true", help="go on until SIGTERM")
    return parser.parse_args()


def _copy(options: argparse.Namespace) -> int:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    settings, stopping = client_settings(options.bootstrap, options.config, "--config"), Event()
    options.to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(lock_directories([options.to]))
        brokers = stack.enter_context(closing(BrokerConnections(settings, FetchLimits(), options.rack)))
        copy = stack.enter_context(closing(TopicCopy(brokers, options.topic, options.to, follow=options.follow)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        copy.run(stopping.is_set)
        rows = copy.rows()
    for row in rows:
        sys.stdout.write(json.dumps(row._asdict()) + "\n")
    return 0 if all(row.state == ("following" if options.follow else "copied") for row in rows) else 1


if __name__ == "__main__":
    main()
