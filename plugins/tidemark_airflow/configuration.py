"""Reads the section ``[tidemark]`` of Airflow's configuration.

``airflow config list --section tidemark`` shows it, and ``AIRFLOW__TIDEMARK__<OPTION>`` in the environment sets an
option. Options are read when a DAG file or a task runs, so all of Airflow's components must have the same options,
except for options that name a component's role at the store.
"""

from __future__ import annotations

from typing import Final

from airflow.configuration import conf

from tidemark_airflow.options import OPTIONS, SECTION

_DEFAULTS: Final = {known.name: known.default or "" for known in OPTIONS}


def option(name: str) -> str:
    """The set value of an option, or its default, or an empty text."""
    return str(conf.get(SECTION, name, fallback=_DEFAULTS[name]))


def number(name: str) -> float:
    """The value of a numeric option. Raises AirflowConfigException if it is not a number."""
    return conf.getfloat(SECTION, name, fallback=float(_DEFAULTS[name]))


def flag(name: str) -> bool:
    """The value of a true-or-false option. Raises AirflowConfigException if it is neither."""
    return conf.getboolean(SECTION, name, fallback=_DEFAULTS[name] == "True")


def names(name: str) -> list[str]:
    """The names in an option that lists names, separated by commas."""
    return [listed for word in option(name).split(",") if (listed := word.strip())]


def triggerer_capacity() -> int:
    """The most triggers that a triggerer runs at a time, by Airflow's own option; its command line may have another."""
    return conf.getint("triggerer", "capacity", fallback=1000)


def label(name: str) -> str:
    """An option's label in messages."""
    return f"[{SECTION}] {name}"
