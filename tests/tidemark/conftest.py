"""What hypothesis draws: by the session's seed as all else, and little where runs are often. It sets no time."""

from __future__ import annotations

from hypothesis import core, settings

from tests.support.fixtures import FULL, SEED

core.global_force_seed = SEED  # type: ignore[assignment]  # hypothesis sets it so by its option
settings.register_profile("tidemark", max_examples=500 if FULL else 30, deadline=None)
settings.load_profile("tidemark")
