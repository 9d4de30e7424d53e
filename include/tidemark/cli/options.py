"""What several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How an answer is printed."""

    text = "text"
    json = "json"


TopicName = Annotated[str, typer.Argument(help="A topic of the topics file.")]
Topics = Annotated[Path, typer.Option(envvar="TIDEMARK_TOPICS", metavar="FILE", help="The topics file.")]
Cluster = Annotated[str | None, typer.Option(help="Needed where two clusters have the topic's name.")]
As = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]

DEFAULT_TOPICS = Path("topics.yaml")
