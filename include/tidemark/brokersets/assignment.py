"""A placement in the formats of Kafka's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemark.brokersets.placement import Replicas


def reassignment(topic: str, placement: Sequence[Replicas]) -> dict[str, Any]:
    """The document for ``kafka-reassign-partitions --reassignment-json-file``."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas)} for number, replicas in enumerate(placement)
    ]
    return {"version": 1, "partitions": partitions}


def replica_assignment(placement: Sequence[Replicas]) -> str:
    """The argument of ``kafka-topics --create --replica-assignment``."""
    return ",".join(":".join(map(str, replicas)) for replicas in placement)
