"""A look at a topic, from its name to the change: what ``tidemark topics add`` and Airflow's form do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemark.onboarding.gather import facts_and_sample, topic_loads
from tidemark.onboarding.onboard import Onboarding, Request, onboard
from tidemark.onboarding.options import SampleSource
from tidemark.onboarding.rights import Right, rights
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment


class Look(NamedTuple):
    """What was found, the change, and the rights that the topic needs."""

    found: Onboarding
    rights: tuple[Right, ...]


def look_at(
    request: Request,
    deployment: Deployment,
    client: Mapping[str, Any] | None,
    source: SampleSource,
    records: int,
    say: Callable[[str], None],
) -> Look:
    """Ask Kafka (``client`` are kafka-python's settings, None asks nobody), sample, propose, and try rights.

    ``deployment`` is what the file of ``request`` says. ``say`` is told how it gets on.

    Raises:
        ConfigError: the topic is refused; says why, and which option would change that.
        BrokerError, StoreError, FormatError, SegmentError, RegistryUnavailable: somebody cannot be asked.
    """
    say("asking Kafka and sampling records …")
    facts, sample = facts_and_sample(request, deployment, client, source, records)
    loads = topic_loads(deployment, request.cluster, request.topic)
    found = onboard(request, facts, sample, loads, utc_now(), say)
    say("trying rights …")
    return Look(found, tuple(rights(deployment, found.topic)))
