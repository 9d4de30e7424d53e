"""A fault to plant: patches of real code, and the schedules in which it is looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Patches = Iterable[Any]


@dataclass(frozen=True)
class Mutant:
    """``patches`` plant it, in topics that are ``replicated`` or not, or where that is None, as the schedule has it.

    ``compacted``, ``fetching``, ``unclean``, ``careless`` and ``restored`` have all schedules so; see
    :class:`~.schedule.Schedule`.
    """

    patches: Callable[[], Patches]
    replicated: bool | None = None
    compacted: bool = False
    fetching: bool = False
    unclean: bool = False
    careless: bool = False
    restored: bool = False
