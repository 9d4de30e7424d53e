"""The pass over masks that are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pytest

from tests.spark.test_vacuum import Died
from tests.spark.world import World, in_process
from tests.support import erased
from tests.tidemark.erasure.asked import approve, asked
from tidemark.formats.table.plan import RunResult
from tidemark.planning import write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark.store.local import LocalStore
from tidemark.store.s3.store import S3Store
from tidemark_spark.run.driver import run


@contextmanager
def killed(
    after: int, also: Callable[[], bool] = lambda: False, store: type[LocalStore | S3Store] = LocalStore
) -> Iterator[None]:
    """All writes and deletions die from the one after ``after`` others on; the first is carried out if ``also``."""
    left = [after]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(self: LocalStore | S3Store, *arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                return real(self, *arguments, **options)
            if left[0] == -1 and also():
                real(self, *arguments, **options)
            raise Died

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "delete", "delete_version"):
            patch.setattr(store, name, dying(getattr(store, name)))
        yield


_NUMBERS: Final = count(1)


def erase(world: World, offsets: list[int], partition: int = 0, **more: Any) -> None:
    """Mask ``offsets`` for an approved request."""
    prefix = world.raw.keys().endpoint.prefix
    approval = approve(world.raw.store, asked([b"a"], number=next(_NUMBERS)), prefix=prefix)
    erased.erase(world.raw, offsets, partition, approval=approval, **more)


def take_out(world: World) -> RunResult:
    """Plan the erasure, carry it out, and check that all is exact."""
    plan = plan_erasure(world.table)
    assert plan is not None
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result
