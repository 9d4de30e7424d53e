"""``brokersets.yaml``: the zones of each cluster's brokers, and the brokersets that they form."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidemark.config import Settings, Size, hint, load
from tidemark.errors import ConfigError
from tidemark.formats.keys import check_cluster

MOST_BROKERS: Final = 10_000
"""Limit of one list; no cluster has more, and a typing error must not make a billion."""

_SEQUENCE: Final = re.compile(r"(\d{1,9})-(\d{1,9})")


def _brokers(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError("must be a list of brokers and sequences of brokers, such as [1-6, 9]")  # noqa: TRY004 - pydantic
    brokers = [number for item in value for number in _sequence(item)]
    if len(brokers) > MOST_BROKERS:
        raise ValueError(f"has more than {MOST_BROKERS:,} brokers")
    if twice := sorted(number for number, count in Counter(brokers).items() if count > 1):
        raise ValueError(f"broker {twice[0]} appears twice")
    return tuple(sorted(brokers))


def _sequence(item: object) -> range:
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return range(item, item + 1)
    match = _SEQUENCE.fullmatch(item) if isinstance(item, str) else None
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"{item!r} must be a broker's number, or a sequence such as 1-6")
    return range(int(match[1]), min(int(match[2]), int(match[1]) + MOST_BROKERS) + 1)


Brokers = Annotated[tuple[int, ...], BeforeValidator(_brokers), Field(min_length=1)]
"""Numbers of brokers, written as a list of numbers and of sequences: ``[1-6, 9]``."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


_MISSING: Final = (
    "does not exist. A brokersets file is optional, and names subsets of a cluster's brokers: "
    "`clusters: {prod: {brokersets: {small: {brokers: [1-6]}}}}`. Write one, or name yours by --brokersets"
)


class BrokersetSettings(Settings):
    """A subset of a cluster's brokers. ``capacity`` is the upload limit of each broker, in bytes a second."""

    brokers: Brokers
    capacity: Size | None = Field(default=None, ge=1)


class Brokerset(Settings):
    """A brokerset with the zones of its brokers: ``zones[n]`` is the zone of ``brokers[n]``."""

    name: str
    brokers: tuple[int, ...]
    zones: tuple[str, ...]
    capacity: int | None = None

    @property
    def by_zone(self) -> dict[str, tuple[int, ...]]:
        """The brokers of each zone in ascending order; the zone of the lowest broker comes first."""
        by_zone: dict[str, list[int]] = {}
        for broker, zone in sorted(zip(self.brokers, self.zones, strict=True)):
            by_zone.setdefault(zone, []).append(broker)
        return {zone: tuple(brokers) for zone, brokers in by_zone.items()}


class ClusterBrokersets(Settings):
    """The zones and brokersets of a cluster. Without zones, each broker counts as a zone of its own."""

    zones: dict[Name, Brokers] = Field(default_factory=dict)
    brokersets: dict[Name, BrokersetSettings] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_zones(self) -> Self:
        counts = Counter(broker for brokers in self.zones.values() for broker in brokers)
        if twice := sorted(broker for broker, count in counts.items() if count > 1):
            raise ValueError(f"zones: broker {twice[0]} is in two zones")
        for name, brokerset in self.brokersets.items() if self.zones else ():
            if without := sorted({*brokerset.brokers} - counts.keys()):
                raise ValueError(f"brokersets.{name}: broker {without[0]} is in no zone; list it under zones")
        return self


class BrokersetsFile(Settings):
    """The file as a whole."""

    clusters: dict[Annotated[str, AfterValidator(check_cluster)], ClusterBrokersets]

    def of_cluster(self, cluster: str) -> tuple[Brokerset, ...]:
        """The brokersets of ``cluster``, in the file's order. Raises ConfigError if the file lacks the cluster."""
        if cluster not in self.clusters:
            raise ConfigError(
                "the brokersets file", [("clusters", f"has no {cluster}; {hint(cluster, self.clusters)}")]
            )
        of_cluster = self.clusters[cluster]
        zone_of = {broker: zone for zone, brokers in of_cluster.zones.items() for broker in brokers}
        return tuple(
            Brokerset(
                name=name,
                brokers=chosen.brokers,
                zones=tuple(zone_of.get(broker, f"broker {broker}") for broker in chosen.brokers),
                capacity=chosen.capacity,
            )
            for name, chosen in of_cluster.brokersets.items()
        )


def load_brokersets(path: Path) -> BrokersetsFile:
    """Read a brokersets file. Raises :class:`tidemark.errors.ConfigError` naming file, field and rule."""
    if not path.exists():
        raise ConfigError(str(path), [("", _MISSING)])
    return load(BrokersetsFile, path, {})


def brokerset_named(brokersets: tuple[Brokerset, ...], name: str) -> Brokerset:
    """The brokerset ``name``. Raises ConfigError."""
    named = next((brokerset for brokerset in brokersets if brokerset.name == name), None)
    if named is None:
        rule = f"has no {name}; {hint(name, [brokerset.name for brokerset in brokersets])}"
        raise ConfigError("the brokersets file", [("brokersets", rule)])
    return named
