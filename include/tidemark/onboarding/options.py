"""What a person may choose about a topic, as the command line and Airflow's form offer it.

DAG files import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import logging
import re
from typing import Final, Literal, NamedTuple

from tidemark.errors import ConfigError
from tidemark.installation import need

Format = Literal["json", "avro", "protobuf", "bytes"]
"""What values are."""

SampleSource = Literal["auto", "raw", "kafka"]
"""Where records are sampled: raw if the agents have stored any, else Kafka; or one of them."""

TimeUnit = Literal["s", "ms", "us", "ns"]
"""What a whole number counts since 1970."""

MOST_RECORDS: Final = 100_000
DEFAULT_RECORDS: Final = 2000
"""Of a sample."""

DEFAULT_PARTITION_RATE: Final = "5MiB"
DEFAULT_REPLICATION_FACTOR: Final = 3
"""Of a topic that does not exist yet."""


class Wanted(NamedTuple):
    """A topic that is to be created. Rates are in bytes a second, that of a partition is what it may have at most."""

    cluster: str
    topic: str
    rate: float | None
    partition_rate: float
    partitions: int | None
    replication_factor: int
    brokerset: str | None


_FACTORS: Final = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
RATE: Final = rf"([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?) ?({'|'.join(_FACTORS)})(?:/s)?"
"""The pattern of a rate, in the words that Python and JavaScript share."""


def byte_rate(text: str, option: str) -> float:
    """Bytes a second of what a person wrote: ``20MiB`` or ``20MB/s``. Raises ConfigError that names ``option``."""
    match = re.fullmatch(RATE, text)
    found = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    if found <= 0:
        raise ConfigError(option, [("", f"{text!r} must be a size above 0, such as 20MiB or 20MB/s")])
    return found


def need_extra() -> None:
    """Raise ConfigError where the packages of ``tidemark-kafka[onboarding]`` are missing; quiet kafka-python.

    It logs at each try what comes as an error in the end.
    """
    need("onboarding", "pyarrow", "numba", "kafka", "ruamel.yaml", "fastavro")
    logging.getLogger("kafka").setLevel(logging.ERROR)
