"""A look at a topic, from its name to the change: the work of ``tidemark topics add`` and of Airflow's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tidemark.onboarding.gather import facts_and_sample, topic_loads
from tidemark.onboarding.onboard import Onboarding, OnboardingRequest, onboard
from tidemark.onboarding.options import SampleSource
from tidemark.onboarding.rights import Right, rights
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment


class Look(NamedTuple):
    """The result of onboarding, and the rights that the topic needs."""

    found: Onboarding
    rights: tuple[Right, ...]


def look_at(
    request: OnboardingRequest,
    deployment: Deployment,
    client: Mapping[str, Any] | None,
    source: SampleSource,
    records: int,
    say: Callable[[str], None],
) -> Look:
    """Ask Kafka (``client`` are kafka-python's settings, None asks nobody), sample, propose, and try rights.

    ``deployment`` is parsed from the file of ``request``. ``say`` gets the progress.

    Raises:
        ConfigError: the topic is refused; names the reason, and the option that would change that.
        BrokerError, StoreError, FormatError, SegmentError, RegistryUnavailable: a service cannot be asked.
    """
    say("asking Kafka and sampling records …")
    facts, sample = facts_and_sample(request, deployment, client, source, records)
    loads = topic_loads(deployment, request.cluster, request.topic)
    found = onboard(request, facts, sample, loads, utc_now(), say)
    say("trying rights …")
    return Look(found, tuple(rights(deployment, found.topic)))
