"""Triggers as versions since 1.0.0 have stored them in Airflow's database: runs that wait go on after an upgrade."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

from tidemark_airflow.triggers.landing import LandingTrigger
from tidemark_airflow.triggers.watermark import WatermarkTrigger

SOURCE = {
    "cluster": "kafka-1",
    "store": "s3://raw",
    "folder": "_watermarks/kafka-1/",
    "heads": [{"store": "s3://raw", "folder": "_heads/kafka-1/"}],
    "lake": "s3://lake",
    "lake_prefix": "",
    "options": {
        "backend": None,
        "endpoint_url": "https://s3.example",
        "region": None,
        "path_style": None,
        "connections": 16,
        "connect_timeout": "5000ms",
        "no_progress": "30000ms",
        "deadline": "60000ms",
        "min_rate": 262144,
        "multipart_from": None,
        "part_size": 67108864,
        "sse_kms_key_id": None,
        "storage_class": None,
        "tags": {},
        "expected_bucket_owner": None,
    },
    "seconds": 2.0,
}
BASELINE: dict[str, Any] = {
    "topic": "orders",
    "landed": {},
    "settled": "",
    "settled_at": None,
    "size": 67108864,
    "age": "PT0S",
    "late_after": "PT15M",
    "live": False,
    "look_again_at": "2026-11-26T14:30:07.923000Z",
}
LANDING = {"topics": [{"topic": "orders", "every": "PT15S"}], "topics_file": "/etc/tidemark/topics.yaml"}


def made(path: str, kwargs: dict[str, Any]) -> Any:
    """The trigger as the triggerer makes it."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(**kwargs)


def test_1_0_0_waits_for_watermarks_like_this() -> None:
    trigger = made("tidemark_airflow.triggers.watermark.WatermarkTrigger", {"source": SOURCE, "baseline": BASELINE})
    assert isinstance(trigger, WatermarkTrigger)
    assert (trigger.source.lake, trigger.baseline.late_after) == ("s3://lake", timedelta(minutes=15))


def test_1_0_0_waits_for_live_landings_like_this() -> None:
    trigger = made("tidemark_airflow.triggers.landing.LandingTrigger", {"source": SOURCE, **LANDING})
    assert isinstance(trigger, LandingTrigger)
    assert trigger.serialize()[1]["topics"] == LANDING["topics"]
