"""The end of the packed offsets, as a new leader knows it from the tails of former ones."""

from __future__ import annotations

import pytest

from tests.tidemark.formats.packing import entry
from tidemark.kafka_log import Lineage
from uploader_agent.packs.tail import TailState


@pytest.mark.parametrize(
    ("lineage", "end"),
    [
        (((2, 900), (3, 1000)), 1260),
        (((2, 900), (3, 1000), (5, 1100)), 1100),
        (((0, 0), (5, 900)), 0),
        (((0, 0), (5, 800)), 0),
        (((0, 0), (1, 300), (5, 2000)), 0),
    ],
)
def test_a_tail_that_is_on_another_branch_as_a_whole_has_nothing_packed(
    lineage: tuple[tuple[int, int], ...], end: int
) -> None:
    """The seals before it are on that branch as well, from where it leaves this one: it tells nothing of them."""
    packed = TailState()
    packed.join(1, None, [entry()], Lineage(lineage))
    assert packed.tail.end == end
