"""The leaders that the cluster has committed, as opposed to the leaders that a broker may still believe in.

With KRaft a leader epoch is a record of the metadata log. A position of that log is *confirmed* when the quorum's
leader named it as its high watermark, a majority of the voters has fetched from that same leader since, and this broker
has fetched up to it: then this broker has every epoch that was committed before the question. That is Raft's read
index. With ZooKeeper the controller writes an epoch there before it sends it to any broker, and a read after ``sync``
sees everything that was written before it.

Source: KIP-595 (quorum, ``DescribeQuorum``), KIP-836 (fetch times of voters), Raft (section 6.4, read-only queries);
ZooKeeper's "consistency guarantees" for ``sync``; Kafka's ``ZkData.TopicPartitionStateZNode``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led, leaders_in, send

_PATIENCE = 10.0
"""Seconds for ZooKeeper to accept a connection."""

_TOPICS = "/brokers/topics"
"""ZooKeeper's folder of topics."""

_MIGRATION = "/migration"
"""The node that exists once a quorum of controllers has begun to take over (``MigrationZNode``)."""


@dataclass(frozen=True, slots=True)
class MetadataMark:
    """The end of the metadata when it was asked for; with KRaft under ``epoch``, with the voters' fetch times.

    ``fetched`` are milliseconds on the quorum leader's clock. They are compared only with one another.
    """

    leader: int = 0
    epoch: int = 0
    offset: int = 0
    fetched: Mapping[int, int] = field(default_factory=dict)


class Authority:
    """The source of certain leader epochs. Every method raises :class:`BrokerUnavailable` without a usable answer.

    This one never has any: it is that of commands that change nothing.
    """

    def mark(self) -> MetadataMark:
        """The current end of the cluster's metadata."""
        raise BrokerUnavailable("the cluster's metadata is not asked for here")

    def confirms(self, mark: MetadataMark) -> bool | None:
        """True if the metadata did reach ``mark`` and this broker now has it; None: ask for a new mark."""
        raise BrokerUnavailable(f"the cluster's metadata is not asked for here, and so not up to {mark}")

    def leader(self, tp: TopicPartition) -> Leader | None:
        """The leader of ``tp`` in this broker's metadata; None if there is no such partition."""
        raise BrokerUnavailable(f"the cluster's metadata is not asked for here, and so not about {tp}")


class QuorumAuthority(Authority):
    """Asks the quorum's leader through any broker, then this broker itself. Needs DESCRIBE on the cluster."""

    def __init__(self, node_id: int, connect: Callable[[], Any]) -> None:
        """Prepare to ask; each question has a connection of its own."""
        self._node_id = node_id
        self._connect = connect

    @override
    def mark(self) -> MetadataMark:
        quorum = self._quorum()
        if quorum["high_watermark"] < 0:
            raise BrokerUnavailable("the quorum's new leader does not know its high watermark yet")
        return MetadataMark(quorum["leader_id"], quorum["leader_epoch"], quorum["high_watermark"], _fetched(quorum))

    @override
    def confirms(self, mark: MetadataMark) -> bool | None:
        quorum = self._quorum()
        if (quorum["leader_id"], quorum["leader_epoch"]) != (mark.leader, mark.epoch):
            return None
        voters = _fetched(quorum)
        heard = [voter for voter, at in voters.items() if voter == mark.leader or at > mark.fetched.get(voter, at)]
        ends = {
            replica["replica_id"]: replica["log_end_offset"]
            for replica in (*quorum["current_voters"], *quorum["observers"])
        }
        return 2 * len(heard) > len(voters) and ends.get(self._node_id, -1) >= mark.offset

    @override
    def leader(self, tp: TopicPartition) -> Leader | None:
        from uploader_agent.broker.partition_requests import topics

        # Only this broker is known to have the confirmed metadata.
        answer = self._ask(lambda client: send(client, topics([tp.topic]), self._node_id))
        return leaders_in(answer).get(tp)

    def _quorum(self) -> Any:
        answer = self._ask(lambda client: client.describe_metadata_quorum())
        [part] = answer["topics"][0]["partitions"]
        if part["error"]:
            raise BrokerUnavailable(f"the quorum's leader cannot be asked: {part['error']}")
        return part

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from kafka.errors import KafkaError

        try:
            with closing(self._connect()) as client:
                return question(client)
        except (KafkaError, OSError, TimeoutError) as error:
            raise BrokerUnavailable(f"the cluster cannot be asked: {type(error).__name__}: {error}") from error


class ZooKeeperAuthority(Authority):
    """Reads the partition's state where the controller writes it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Prepare to connect with ``options`` of ``KazooClient``, which include ``hosts``."""
        self._options = options

    def mark(self) -> MetadataMark:
        """See :class:`Authority`. Later reads see everything that was written before, so no position is needed."""
        return MetadataMark()

    @override
    def confirms(self, mark: MetadataMark) -> bool | None:
        return mark == MetadataMark()

    @override
    def leader(self, tp: TopicPartition) -> Leader | None:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException, NoNodeError

        client = KazooClient(**deepcopy(dict(self._options)))  # kazoo changes its arguments
        try:
            client.start(timeout=_PATIENCE)
            if client.exists(_MIGRATION) is not None:
                raise BrokerUnavailable("the cluster migrates to KRaft, whose quorum writes to ZooKeeper afterwards")
            topic_path = f"{_TOPICS}/{tp.topic}"
            state_path = f"{topic_path}/partitions/{tp.partition}/state"
            client.sync(state_path)
            state = json.loads(client.get(state_path)[0])
            topic = json.loads(client.get(topic_path)[0])
            return Leader(state["leader"], Led(state["leader_epoch"], topic.get("topic_id")))
        except NoNodeError:
            return None
        except (KazooException, client.handler.timeout_exception, OSError, ValueError, KeyError) as error:
            raise BrokerUnavailable(f"ZooKeeper cannot be asked: {type(error).__name__}: {error}") from error
        finally:
            client.stop()
            client.close()


def _fetched(quorum: Mapping[str, Any]) -> dict[int, int]:
    return {voter["replica_id"]: voter["last_fetch_timestamp"] for voter in quorum["current_voters"]}
