"""All mutants: some test must see each."""

from __future__ import annotations

from typing import Final

from tests.mutants.agent import AGENT
from tests.mutants.contract import CONTRACT
from tests.mutants.jobs import JOBS
from tests.mutants.kafka_tier import KAFKA_TIER

CATALOG: Final = (*AGENT, *CONTRACT, *JOBS, *KAFKA_TIER)
