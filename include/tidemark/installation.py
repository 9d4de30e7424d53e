"""Where an installation keeps what is not a module: DAG files, Spark's programs, deploy/.

A wheel carries them below ``tidemark/shipped`` in the checkout's layout (``hatch_build.py``). An editable installation
has none of them there, and the checkout's own count.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
FILES = {
    "dags": ("dags", "Airflow's folder of DAG files"),
    "jobs": ("spark/jobs", "the programs that spark-submit starts"),
    "deploy": ("deploy", "policies, units, alert rules, the Helm chart, examples"),
}
"""By name the path below :func:`home`, and what is there."""


def home() -> Path:
    """The folder that holds what :data:`FILES` names."""
    shipped = _PACKAGE / "shipped"
    return shipped if shipped.is_dir() else _PACKAGE.parents[1]


def folder(name: str) -> Path:
    """The folder that :data:`FILES` has under ``name``; KeyError for another name."""
    return home() / FILES[name][0]
