"""Run a program of a page in this process's session of Spark."""

from __future__ import annotations


def main(program: str) -> None:
    """``program`` is its text."""
    exec(compile(program, "the page", "exec"), {})  # noqa: S102 (a page's own example)
