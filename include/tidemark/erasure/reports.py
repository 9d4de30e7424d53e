"""The reports of passes, as far as they tell which requests are done."""

from __future__ import annotations

from tidemark.table.delta_table import TopicTable


def done_in(_table: TopicTable) -> frozenset[str]:
    """The ids of the requests that passes have completed in the table's topic."""
    return frozenset()
