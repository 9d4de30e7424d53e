"""The keys of the objects of Kafka's remote tier.

``<prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<kind>``. The prefix is the plugin's
``key.prefix`` and is glued on as it is: a slash is there only if it was configured.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, cast

Kind = Literal["log", "indexes", "rsm-manifest"]

KINDS: Final[tuple[Kind, ...]] = ("log", "indexes", "rsm-manifest")
"""In the order in which the plugin writes them."""

_ID = r"[A-Za-z0-9_-]{22}"
# A topic's name and an id may both contain "-": the fixed length of an id tells where the name ends.
_KEY: Final = re.compile(
    rf"([A-Za-z0-9._-]{{1,249}})-({_ID})/(0|[1-9][0-9]{{0,9}})/([0-9]{{20}})-({_ID})\.({'|'.join(KINDS)})", re.ASCII
)


class CopyName(NamedTuple):
    """The name of a copy of a segment. Two copies of one segment differ in ``segment_id`` alone.

    ``topic_id`` and ``segment_id`` are in Kafka's notation: 22 characters of URL-safe base64.
    """

    topic: str
    topic_id: str
    partition: int
    base: int
    segment_id: str

    def key(self, prefix: str, kind: Kind) -> str:
        """The key of one of the copy's objects."""
        folder = f"{prefix}{self.topic}-{self.topic_id}/{self.partition}"
        return f"{folder}/{self.base:020d}-{self.segment_id}.{kind}"


def parse_key(key: str, prefix: str) -> tuple[CopyName, Kind] | None:
    """The copy and the kind of the object ``key``; None if it is no object of the remote tier below ``prefix``."""
    match = _KEY.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None or int(match[4]) >= 1 << 63:
        return None
    return CopyName(match[1], match[2], int(match[3]), int(match[4]), match[5]), cast("Kind", match[6])
