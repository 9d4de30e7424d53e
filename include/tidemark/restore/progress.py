"""The progress of a partition's restore: an offset of a group of the target's cluster, with the rest as its metadata.

So a restore can be continued on any machine, and a transaction can hold records and progress together
(``TxnOffsetCommit``). The committed offset is the next one of the *source*; group and transactional id are one name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Final, Self

from tidemark.errors import FormatError
from tidemark.formats.base import check_format

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of one partition.

    ``asked`` is the digest of the request (:func:`asked`); ``incarnation``, ``first`` and ``end`` are its meaning at
    the begin: the source's offsets ``[first, end)``. Of them ``[first, next)`` are done: ``records`` records of the sum
    ``total``, which lie in the target at ``[target_first, target_next)``; ``epoch`` is their newest leader epoch.
    """

    asked: str
    incarnation: int
    first: int
    end: int
    next: int
    target_first: int
    target_next: int
    records: int = 0
    total: int = 0
    epoch: int = -1

    @property
    def done(self) -> bool:
        """True if the range is restored."""
        return self.next >= self.end

    @property
    def without_record(self) -> int:
        """Number of offsets without a record: of transaction markers, aborted, compacted and erased records."""
        return self.next - self.first - self.records

    def to_metadata(self) -> str:
        """The metadata committed with ``next``; some 200 of the 4,096 bytes that brokers take by default."""
        told = asdict(self)
        del told["next"]
        told["total"] = f"{self.total:032x}"
        return json.dumps({"format": _FORMAT, **told}, separators=(",", ":"))

    @classmethod
    def of(cls, offset: int, metadata: str, name: str) -> Self:
        """The committed progress. Raises FormatError naming the group if the metadata is of another kind."""
        try:
            stored = json.loads(metadata)
            check_format(name, cls.__name__, stored["format"], _FORMAT, stored.get("needs"))
            names = [field.name for field in fields(cls)] if stored["format"] == _FORMAT else []
            known = {field: stored[field] for field in names if field in stored}
            return cls(next=offset, **{**known, "total": int(known["total"], 16)})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            remedy = f"{metadata[:80]!r}: delete the group, or choose another target"
            raise FormatError(name, f"does not hold the progress of a restore, but {remedy}") from error


def asked(*parts: object) -> str:
    """A digest of a restore's request in 16 digits: a run with another request is another restore."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
