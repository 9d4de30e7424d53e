"""What hypothesis draws: by the session's seed as all else, and little in runs that are often."""

from __future__ import annotations

from hypothesis import core, settings

from tests.support.fixtures import FULL, SEED

core.global_force_seed = SEED
settings.register_profile("tidemark", max_examples=500 if FULL else 30)
settings.load_profile("tidemark")
