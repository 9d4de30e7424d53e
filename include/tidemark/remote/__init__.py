"""Reads the remote tier, the agents' stored copy of a cluster, without a broker.

``catalog`` finds the stored offsets of a partition and their objects; its module ``storage`` locates the cluster's
objects. ``reader`` reads and decodes the records. Nothing here depends on a Kafka client.
"""

from tidemark.remote.catalog.storage import Storage
from tidemark.remote.topics import OffsetForTime, RemotePartition, RemoteTopics, Stretch

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Storage", "Stretch"]
