"""Where an installation keeps what is not a module: DAG files, Spark's programs, deploy/.

A wheel carries them below ``tidemark/shipped`` in the checkout's layout (``hatch_build.py``). An editable installation
has none of them there, and the checkout's own count. What an extra brings may be missing: :func:`need` says so.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tidemark.errors import ConfigError

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


def need(extra: str, *packages: str) -> None:
    """Raise ConfigError where ``packages`` cannot be imported, which ``tidemark-kafka[extra]`` brings."""
    if missing := [one for one in packages if find_spec(one) is None]:
        rule = f"lacks {', '.join(missing)}: install tidemark with the extra {extra}"
        raise ConfigError("this environment", [("", rule)])
