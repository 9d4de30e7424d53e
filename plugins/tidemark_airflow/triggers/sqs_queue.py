"""An SQS queue, as far as doorbells need one. Credentials are found as AWS's tools find them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import DeleteMessageBatchRequestEntryTypeDef

_MOST = 10
"""Messages of one request, by SQS."""

_AT_ONCE = 500
"""Messages that are handed on together, at the most."""

_LONGEST_WAIT = 20
_REGION = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")

log = logging.getLogger(__name__)


class QueueFailed(TidemarkError):
    """SQS did not do what it was asked."""


class Message(NamedTuple):
    """``receipt`` is what deletes it."""

    id: str
    receipt: str
    body: str


class Queue:
    """The queue with this URL; ``region`` where the URL, being that of another server, does not tell."""

    def __init__(self, url: str, region: str | None = None) -> None:
        """Makes the client, which imports it."""
        import boto3
        from botocore.config import Config

        parts = urlsplit(url)
        found = _REGION.fullmatch(parts.hostname or "")
        self._url = url
        # AWS_ENDPOINT_URL would be that of the store.
        self._client: SQSClient = boto3.session.Session().client(
            "sqs",
            region_name=found[1] if found else region,
            endpoint_url=f"{parts.scheme}://{parts.netloc}",
            config=Config(connect_timeout=5, read_timeout=_LONGEST_WAIT + 10, retries={"total_max_attempts": 2}),
        )

    def receive(self, seconds: float) -> list[Message]:
        """The next messages, and those that are there with them; none if none came within ``seconds``.

        Raises:
            QueueFailed: see the message.
        """
        found = self._receive(min(_LONGEST_WAIT, max(1, math.ceil(seconds))))
        while 0 < len(found) < _AT_ONCE and (more := self._receive(0)):
            found += more
        return found

    def _receive(self, wait: int) -> list[Message]:
        with self._failing():
            given = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=_MOST, WaitTimeSeconds=wait)
        return [Message(one["MessageId"], one["ReceiptHandle"], one["Body"]) for one in given.get("Messages", ())]

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete the messages with these receipts; those that SQS refuses come again.

        Raises:
            QueueFailed: see the message.
        """
        for first in range(0, len(receipts), _MOST):
            some = receipts[first : first + _MOST]
            entries: list[DeleteMessageBatchRequestEntryTypeDef] = [
                {"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(some)
            ]
            with self._failing():
                refused = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries).get("Failed", ())
            for one in refused:
                log.warning("%s: message not deleted: %s", self._url, one.get("Message", one["Code"]))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise QueueFailed(f"{self._url}: {error}") from error
