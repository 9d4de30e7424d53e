"""Prints the rows and the columns of the ``table`` that a recipe makes in this process's session of Spark, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(recipe: str) -> None:
    """Run ``recipe``."""
    scope: dict[str, Any] = {"spark": SparkSession.builder.getOrCreate()}
    exec(recipe, scope)  # noqa: S102 - the documentation's own code
    sys.stdout.write(f"{scope['table'].count()}\n{json.dumps(scope['table'].columns)}\n")
