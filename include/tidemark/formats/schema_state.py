"""Which schema of a registry a topic's columns come from, and what of a newer one waits for a person."""

from __future__ import annotations

import base64
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

ChangeKind = Literal["added", "removed", "wider", "misfit"]


class SchemaChange(Model):
    """What a newer schema has otherwise than the adopted one, at ``path``; ``detail`` says it in words.

    ``added`` and ``removed`` are adopted: a column more, or one that is null from now on. ``wider`` is adopted by a
    rebuild of the whole table. A ``misfit`` cannot be adopted in this table.
    """

    path: str
    kind: ChangeKind
    detail: str

    @property
    def waits(self) -> bool:
        """Whether it is not adopted without a person."""
        return self.kind in {"wider", "misfit"}


class SchemaVersion(Model):
    """A registered schema: ``number`` is its id in the registry, ``version`` that in the subject; seen ``at``."""

    number: int = Field(ge=0)
    version: int = Field(ge=0)
    at: AwareDatetime


class SchemaStep(SchemaVersion):
    """A version, and what it has otherwise than what was adopted before it."""

    changes: tuple[SchemaChange, ...] = ()

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether a rebuild of the whole table would adopt any of the changes."""
        return any(one.kind == "wider" for one in self.changes)


class Definition(SchemaStep):
    """What columns come from, after that step: all that was ever adopted, so that older records are read as before.

    ``definition`` is in base64: an Avro schema, a descriptor set, or a list of columns as JSON.
    """

    definition: str

    @property
    def data(self) -> bytes:
        """The definition itself."""
        return base64.b64decode(self.definition)


class SchemaState(StoredObject):
    """``schema.json`` of a topic whose parser follows ``subject``.

    ``newest`` was compared with what is ``adopted``. Where something of it waits, ``proposal`` is the definition that a
    rebuild of the whole table adopts, with the ``wider`` columns, and all changes that wait. Its alert is ``dismissed``
    if a person has said so of that version. Since ``unanswered_since`` the registry has not answered, for ``reason``.
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
