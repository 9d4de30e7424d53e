"""Reads the remote tier, the agents' stored copy of a cluster, without a broker.

``catalog`` finds the stored offsets of a partition and their objects. ``reader`` reads and decodes the records. Nothing
here depends on a Kafka client.
"""

from tidemark.remote.topics import OffsetForTime, RemotePartition, RemoteTopics, Stretch

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Stretch"]
