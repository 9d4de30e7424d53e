"""The images that a node of the tests runs: the agent's, Kafka's, and one that does nothing.

They are built as for docker-compose.yaml, with stand-ins where no registry of images can be reached.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.containers.engine import FOLDER, Engine, running_engine
from tests.containers.stand_ins import OVERRIDE, replaced
from tests.support.paths import ROOT

REPOSITORY = "localhost/tidemark-agent"
TAG = "tests"
AGENT = f"{REPOSITORY}:{TAG}"
KAFKA = "localhost/kafka:tests"
PAUSE = "localhost/pause:tests"
"""Holds the namespaces of a pod."""


def export_images(archive: Path) -> None:
    """Build the images, and write them to an archive that a node can import."""
    with running_engine() as engine:
        base, kafka = _foundations(engine)
        dockerfile = str(ROOT / "docker" / "agent.Dockerfile")
        engine.docker("build", "--tag", AGENT, "--build-arg", f"BASE={base}", "--file", dockerfile, str(ROOT))
        engine.docker("tag", kafka, KAFKA)
        engine.docker("build", "--tag", PAUSE, "-", given=f'FROM {base}\nCMD ["sleep", "infinity"]\n')
        engine.docker("save", "--output", str(archive), AGENT, KAFKA, PAUSE)


def _foundations(engine: Engine) -> tuple[str, str]:
    """Python's image and Kafka's, pulled or built."""
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    kafka = compose["services"]["kafka"]["image"]
    [base] = re.findall(r"^ARG BASE=(\S+)", (ROOT / "docker" / "agent.Dockerfile").read_text(), re.MULTILINE)
    stand_ins = replaced(engine, compose)
    if not stand_ins:
        return base, kafka
    build = yaml.safe_load(OVERRIDE.read_text())["services"]["kafka"]
    context = str(FOLDER / "images")
    argument = f"BASE={stand_ins[base]}"
    engine.docker("build", "--tag", build["image"], "--target", "kafka", "--build-arg", argument, context)
    return stand_ins[base], build["image"]
