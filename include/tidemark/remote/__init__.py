"""Reads the remote tier, which is what the agents stored of a cluster, without a broker.

``catalog`` finds which offsets of a partition are stored and where to read them; its module ``storage`` locates the
cluster's objects. ``reader`` reads and decodes the records. Nothing here depends on a Kafka client.
"""

from tidemark.remote.catalog.storage import Storage
from tidemark.remote.topics import OffsetForTime, RemotePartition, RemoteTopics, Stretch

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Storage", "Stretch"]
