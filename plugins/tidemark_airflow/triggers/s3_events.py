"""What S3 tells of objects that were written: the same news in the three forms in which a queue may get it.

S3's own (``Records``; keys are URL-encoded), the same as a message of an SNS topic, and EventBridge's (keys as they
are). Delivery is at least once and in no order, so an event is a doorbell: it says where to look, never what is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from tidemark.formats.keys import WATERMARK_NAME, TopicPartition

_TEST = "s3:TestEvent"
_PLACE = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})(?:@(?P<topic_id>[A-Za-z0-9_-]{22}))?-(?P<partition>[0-9]{1,10})")


class Written(NamedTuple):
    """An object that was written, or written anew."""

    bucket: str
    key: str


class Rung(NamedTuple):
    """The partition of a watermark; ``topic_id`` is that of its key, which the first incarnation's has not."""

    at: TopicPartition
    topic_id: str | None


def written(body: str) -> list[Written]:
    """The objects that a message names; none if it is the one by which S3 tests the queue.

    Raises:
        ValueError: it is no such message; says why.
    """
    try:
        message = json.loads(body)
        if message.get("Type") == "Notification":
            message = json.loads(message["Message"])
        if message.get("Event") == _TEST:
            return []
        if "detail" in message:
            return [_of(message["detail"])]
        return [_of(record["s3"], decode=unquote_plus) for record in message["Records"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"neither S3's, SNS's nor EventBridge's: {type(error).__name__} {error}") from error


def _of(entity: dict[str, Any], decode: Callable[[str], str] = str) -> Written:
    return Written(str(entity["bucket"]["name"]), decode(entity["object"]["key"]))


def watermark_of(key: str, cluster: str) -> Rung | None:
    """The partition whose ``offset.wm`` is under ``key``; None if it is something else, or of another cluster."""
    folder, place, name = ("", "", *key.split("/"))[-3:]
    if name != WATERMARK_NAME or folder != cluster or (found := _PLACE.fullmatch(place)) is None:
        return None
    return Rung(TopicPartition(found["topic"], int(found["partition"])), found["topic_id"])
