"""Instructions for trying a kept demo: a file to source, and lines to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from demo.streams import CLICKS, ORDERS, SENSORS
from tests.support.paths import ROOT, env_bin
from tests.support.spark import spark_home


def write_env_file(path: Path, variables: Mapping[str, str]) -> None:
    """Write ``variables``, some of which are secret, as a shell script that only this user can read."""
    tools = [env_bin("dev", "tidemark").parent, spark_home() / "bin"]
    _write(
        path,
        "# The servers of a kept demo, and the tools that it ran with. `make down` stops the servers.\n"
        + _exports(variables)
        + f'export PATH={shlex.quote(":".join(map(str, tools)))}:"$PATH" PYTHONPATH={shlex.quote(str(ROOT))}\n',
    )


def write_approver_file(path: Path, env_file: Path, variables: Mapping[str, str]) -> None:
    """Write the script for the shell of a second person, with ``variables`` in place of those of ``env_file``."""
    source = f". {shlex.quote(str(env_file))}\n"
    _write(path, "# A second person, who approves what the first one has asked for.\n" + source + _exports(variables))


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def erasing(env_file: Path, approver_file: Path) -> list[str]:
    """Commands that erase the orders of one customer, from the request to the report, from the checkout."""
    request = f"tidemark erase request --reason demo --by ada --topic {ORDERS.topic}"
    return [
        f". {env_file.relative_to(ROOT)}",
        f"ID=$(echo customer-7 | {request} | tee /dev/stderr | cut -d: -f1)",
        f'(. {approver_file.relative_to(ROOT)}; tidemark erase approve "$ID" --by grace --yes)',
        f'spark-submit spark/jobs/erase.py --topics "$TIDEMARK_TOPICS" --topic {ORDERS.topic} 2> /dev/null',
        'tidemark erase report "$ID"',
    ]


def lines(env_file: Path) -> list[str]:
    """Commands to run one after the other, from the checkout."""
    return [
        f". {env_file.relative_to(ROOT)}",
        f"tidemark status {CLICKS.topic}",
        f"tidemark continuity {ORDERS.topic}",
        f"tidemark consume {SENSORS.topic} --limit 3",
        f"tidemark files {CLICKS.topic}",
        f"python -m demo.query 'SELECT dt, count(*), sum(amount) FROM {ORDERS.topic} GROUP BY ALL ORDER BY ALL'",  # noqa: S608
        f"echo mine | python -m kafka.producer --bootstrap-servers $KAFKA --topic {SENSORS.topic}",
    ]
