"""Fixtures of the readers' tests."""

from __future__ import annotations

from tests.spark.conftest import on_spark

__all__ = ["on_spark"]
