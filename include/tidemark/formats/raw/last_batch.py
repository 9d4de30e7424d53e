"""The header of the last stored batch, as a manifest, a range or an index entry states it.

With it, a log shows whether it is the stored one without any request to the store: a lineage alone does not prove that
after brokers were restored from a backup.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from typing import Annotated

from pydantic import AfterValidator

from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, header_bytes, read_header


def batch_of(text: str) -> BatchHeader:
    """The header in its stored form, at position 0. Raises ValueError."""
    try:
        data = a2b_base64(text, strict_mode=True)
    except NotBase64 as error:
        raise ValueError("must be the header of a batch, in base64") from error
    whole = (
        len(data) >= PREFIX_SIZE and check_prefix(data, 0) is None and len(data) == HEADER_SIZE[data[PREFIX_SIZE - 1]]
    )
    if not whole:
        raise ValueError("must be the header of a batch, in base64")
    return read_header(data, 0, 0)


def last_batch_of(header: BatchHeader | None) -> str | None:
    """The stored form of ``header``: its bytes as Kafka writes them, in base64."""
    return None if header is None else b2a_base64(header_bytes(header), newline=False).decode()


def _check(text: str) -> str:
    batch_of(text)
    return text


LastBatch = Annotated[str, AfterValidator(_check)]
"""The stored form of a batch's header."""
