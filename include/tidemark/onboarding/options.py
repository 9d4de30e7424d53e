"""Choices about a topic, as the command line and Airflow's form offer them.

DAG files import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import logging
import re
from typing import Final, Literal, NamedTuple

from tidemark.errors import ConfigError
from tidemark.installation import need

Format = Literal["json", "avro", "protobuf", "bytes"]
"""The format of values."""

SampleSource = Literal["auto", "raw", "kafka"]
"""The source of sampled records. ``auto``: raw if the agents have stored any, else Kafka."""

TimeUnit = Literal["s", "ms", "us", "ns"]
"""The unit of a whole number that counts the time since 1970."""

MOST_RECORDS: Final = 100_000
DEFAULT_RECORDS: Final = 2000
"""The number of records in a sample."""

DEFAULT_PARTITION_RATE: Final = "5MiB"
DEFAULT_REPLICATION_FACTOR: Final = 3
"""Settings of a topic that does not exist yet."""


class WantedTopic(NamedTuple):
    """A topic that is to be created. Rates are in bytes a second; ``partition_rate`` is the most of a partition."""

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
    """Bytes a second in a person's ``text``: ``20MiB`` or ``20MB/s``. Raises ConfigError that names ``option``."""
    match = re.fullmatch(RATE, text)
    rate = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    if rate <= 0:
        raise ConfigError(option, [("", f"{text!r} must be a size above 0, such as 20MiB or 20MB/s")])
    return rate


def need_extra() -> None:
    """Raise ConfigError if the packages of ``tidemark-kafka[onboarding]`` are missing; silence kafka-python.

    kafka-python logs each failed try, and raises the error in the end.
    """
    need("onboarding", "pyarrow", "numba", "kafka", "ruamel.yaml")
    logging.getLogger("kafka").setLevel(logging.ERROR)
