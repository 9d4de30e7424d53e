"""The remote tier alone: what the agents stored of a cluster, to be read without a broker.

``storage`` says where it lies, ``catalog`` what is there of a partition and where each offset is to be read. Nothing
here knows a Kafka client.
"""

from tidemark.remote.catalog.storage import Storage
from tidemark.remote.topics import OffsetForTime, RemotePartition, RemoteTopics, Stretch

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Storage", "Stretch"]
