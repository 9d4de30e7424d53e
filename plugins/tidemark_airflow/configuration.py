"""Reads the section ``[tidemark]`` of Airflow's configuration.

``airflow config list --section tidemark`` shows it, and ``AIRFLOW__TIDEMARK__<OPTION>`` in the environment sets an
option. Options are read when a DAG file or a task runs, so they must be the same for all of Airflow's components, but
for those that say in which role a component comes to the store.
"""

from __future__ import annotations

from typing import Final

from airflow.configuration import conf

from tidemark_airflow.options import OPTIONS, SECTION

_DEFAULTS: Final = {one.name: one.default or "" for one in OPTIONS}


def option(name: str) -> str:
    """What is set, or the default; empty if there is none."""
    return str(conf.get(SECTION, name, fallback=_DEFAULTS[name]))


def number(name: str) -> float:
    """The same of an option that is a number. Raises AirflowConfigException if it is none."""
    return conf.getfloat(SECTION, name, fallback=float(_DEFAULTS[name]))


def flag(name: str) -> bool:
    """The same of an option that is true or false. Raises AirflowConfigException if it is neither."""
    return conf.getboolean(SECTION, name, fallback=_DEFAULTS[name] == "True")


def names(name: str) -> list[str]:
    """The same of an option that lists names, separated by commas."""
    return [one for word in option(name).split(",") if (one := word.strip())]


def label(name: str) -> str:
    """An option as messages name it."""
    return f"[{SECTION}] {name}"
