"""An installation: its version, and its files that are not modules: DAG files, Spark's programs, deploy/.

A wheel carries them below ``tidemark/shipped`` in the checkout's layout (``hatch_build.py``). An editable installation
has none of them there, and uses the checkout's own. :func:`need` reports packages of an extra that are missing.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidemark.errors import ConfigError

VERSION: Final = version("tidemark-kafka")
"""The installed version."""

_PACKAGE = Path(__file__).resolve().parent
FILES = {
    "dags": ("dags", "Airflow's folder of DAG files"),
    "jobs": ("spark/jobs", "the programs that spark-submit starts"),
    "deploy": ("deploy", "policies, units, alert rules, the Helm chart, examples"),
}
"""The path below :func:`home` and its content, by name."""


def home() -> Path:
    """The folder of the paths in :data:`FILES`."""
    shipped = _PACKAGE / "shipped"
    return shipped if shipped.is_dir() else _PACKAGE.parents[1]


def folder(name: str) -> Path:
    """The folder ``name`` of :data:`FILES`; KeyError for another name."""
    return home() / FILES[name][0]


def need(extra: str, *packages: str) -> None:
    """Raise ConfigError if one of ``packages``, which ``tidemark-kafka[extra]`` brings, cannot be imported."""
    if missing := [package for package in packages if find_spec(package) is None]:
        rule = f"lacks {', '.join(missing)}: install tidemark with the extra {extra}"
        raise ConfigError("this environment", [("", rule)])
