"""The state's job, with leaves of the size of tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

from tests.spark.state.replay import LEAF
from tidemark_spark.cli import state
from tidemark_spark.state.run import run_state


def main(arguments: Sequence[str]) -> int:
    """Run the job."""
    with patch.object(state, "run_state", partial(run_state, leaf=LEAF)):
        return state.main(arguments)
