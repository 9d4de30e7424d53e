"""What a large rebuild has finished: the outcomes of a step's tasks, and the dates of a rebuild by date that are left.

Both let a job go on after another was killed. docs/architecture.md says who writes them when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, ClassVar, Self

from pydantic import Field

from tidemark.formats import object_sizes
from tidemark.formats.base import AS_MODEL, Model, StoredObject
from tidemark.formats.table.plan import StoredTask


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a task wrote; ``path`` is relative to the table, timestamps are microseconds since 1970.

    ``untimed`` rows have no ``kafka_timestamp``; those of a file are all, or none, unless it was merged.
    """

    path: str
    size: int
    rows: int
    dt: date
    partition: int
    first_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    untimed: int = 0


class StepOutcome(Model):
    """The outcome of a task that reached its end. Its evidence is the next ``evidence`` rows of the step's."""

    incarnation: int
    partition: int
    from_offset: int
    next_offset: int
    evidence: int = Field(ge=0)
    files: tuple[Annotated[DataFile, AS_MODEL], ...] = ()
    bytes_read: int = Field(ge=0)
    other_rows: int = 0
    unknown: dict[str, int] = Field(default_factory=dict)


class RunStep(StoredObject):
    """``steps/<attempt>/<first>-<end>.json``: the outcomes of the tasks ``[first, end)`` of a plan, in their order.

    ``tasks`` is the :func:`digest_of_tasks` of these. Their evidence rows lie beside it, as an evidence object with the
    SHA-256 ``evidence`` (64 hexadecimal digits).
    """

    most_bytes: ClassVar[int] = object_sizes.STEP

    attempt: int
    first: int = Field(ge=0)
    end: int = Field(ge=0)
    tasks: str
    evidence: str
    outcomes: tuple[StepOutcome, ...]


def digest_of_tasks(tasks: Iterable[StoredTask]) -> str:
    """The SHA-256 over the bytes that ``tasks`` read: 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.incarnation} {task.topic_id} {task.partition}\0".encode())
        for part in task.ranges:
            digest.update(f"{part.store} {part.label} {part.etag}\0".encode())
    return digest.hexdigest()


class DatesTogether(Model):
    """Dates (ISO, empty for rows without one) that one commit exchanges, and the attempt that does it."""

    attempt: int
    dates: tuple[str, ...]


class DatewiseRebuild(StoredObject):
    """``rebuilds/<request>.json``: the parts of a rebuild by date that are ``left``, and how many are done."""

    most_bytes: ClassVar[int] = object_sizes.REPORT

    left: tuple[DatesTogether, ...] = Field(min_length=1)
    done: int = Field(default=0, ge=0)

    def without_first(self) -> Self:
        """The same once its first part has landed."""
        return self.model_copy(update={"left": self.left[1:], "done": self.done + 1})
