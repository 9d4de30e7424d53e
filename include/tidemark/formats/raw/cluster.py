"""The cluster that owns a name in the store: all keys have the name, and two clusters must not share one."""

from __future__ import annotations

from tidemark.formats.base import StoredObject


class ClusterOwner(StoredObject):
    """``_fetch/<cluster>/cluster.json``: the id of the Kafka cluster that owns the name; agents of another are refused.

    ``former`` are the ids of the clusters that owned it before, oldest first: a person has handed the name over.
    """

    cluster_id: str
    former: tuple[str, ...] = ()
