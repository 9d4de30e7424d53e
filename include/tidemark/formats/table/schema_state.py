"""The adopted schema of a registry, from which a topic's columns come, and a newer schema that waits for a person."""

from __future__ import annotations

import base64
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

ChangeKind = Literal["added", "removed", "wider", "misfit"]


class SchemaChange(Model):
    """A difference of a newer schema from the adopted one, at ``path``; ``detail`` describes it in words.

    ``added`` and ``removed`` are adopted: a new column, or a column that is null from now on. ``wider`` is adopted by a
    rebuild of the whole table. A ``misfit`` cannot be adopted in this table.
    """

    path: str
    kind: ChangeKind
    detail: str

    @property
    def waits(self) -> bool:
        """True if the change is not adopted without a person."""
        return self.kind in {"wider", "misfit"}


class SchemaVersion(Model):
    """A registered schema: ``number`` is its id in the registry, ``version`` that in the subject; seen ``at``."""

    number: int = Field(ge=0)
    version: int = Field(ge=0)
    at: AwareDatetime


class SchemaStep(SchemaVersion):
    """A version, and its differences from the definition adopted before it."""

    changes: tuple[SchemaChange, ...] = ()

    @property
    def can_be_rebuilt(self) -> bool:
        """True if a rebuild of the whole table would adopt any of the changes."""
        return any(change.kind == "wider" for change in self.changes)


class Definition(SchemaStep):
    """The source of columns after a step: every schema ever adopted, so that older records are read as before.

    ``definition`` is in base64: an Avro schema, a descriptor set, or a list of columns as JSON.
    """

    definition: str

    @property
    def data(self) -> bytes:
        """The decoded definition."""
        return base64.b64decode(self.definition)


class SchemaState(StoredObject):
    """``schema.json`` of a topic whose parser follows ``subject``.

    ``newest`` was compared with ``adopted``. If a part of it waits, ``proposal`` is the definition that a rebuild of
    the whole table adopts, with the ``wider`` columns, and all changes that wait. ``dismissed`` is the version whose
    alert a person has dismissed. Since ``unanswered_since`` the registry has not answered, for ``reason``.
    """

    most_bytes: ClassVar[int] = object_sizes.SCHEMA

    kind: Literal["avro", "json", "protobuf"]
    subject: str
    adopted: Definition
    history: tuple[SchemaStep, ...] = ()
    newest: SchemaVersion
    proposal: Definition | None = None
    dismissed: int | None = None
    unanswered_since: AwareDatetime | None = None
    reason: str = ""
