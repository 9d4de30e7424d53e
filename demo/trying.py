"""Instructions for trying a kept demo: a file to source, and lines to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from demo.streams import CLICKS, ORDERS, SENSORS
from tests.support.paths import ROOT, env_bin


def write_env_file(path: Path, variables: Mapping[str, str]) -> None:
    """Write ``variables``, some of which are secret, as a shell script that only this user can read."""
    tools = env_bin("dev", "tidemark").parent
    path.touch(mode=0o600)
    path.write_text(
        "# The servers of a kept demo, and the tools that it ran with. `make down` stops the servers.\n"
        + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        + f'export PATH={shlex.quote(str(tools))}:"$PATH" PYTHONPATH={shlex.quote(str(ROOT))}\n'
    )


def lines(env_file: Path) -> list[str]:
    """Commands to run one after the other, from the checkout."""
    return [
        f". {env_file.relative_to(ROOT)}",
        f"tidemark status {CLICKS.topic}",
        f"tidemark continuity {ORDERS.topic}",
        f"tidemark consume {SENSORS.topic} --limit 3",
        f"tidemark files {CLICKS.topic}",
        f"python -m demo.query 'SELECT dt, count(*) FROM {ORDERS.topic} GROUP BY ALL ORDER BY ALL'",  # noqa: S608
        f"echo mine | python -m kafka.producer --bootstrap-servers $KAFKA --topic {SENSORS.topic}",
    ]
