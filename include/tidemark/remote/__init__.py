"""Reads the remote tier, the agents' stored copy of a cluster, without a broker.

``partition`` finds the stored offsets of a partition and their objects. ``reader`` reads and decodes the records.
Nothing here depends on a Kafka client.
"""

from tidemark.remote.partition import RemotePartition, Stretch
from tidemark.remote.time_lookup import OffsetForTime
from tidemark.remote.topics import RemoteTopics

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Stretch"]
