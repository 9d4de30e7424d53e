"""Files of tests that share servers which few others need: one process runs them, and only it starts the servers."""

from __future__ import annotations

from typing import Final

THREE_BROKERS: Final = "three brokers"
KAFKA: Final = "Kafka"
END_TO_END: Final = "end to end"

_TOGETHER: Final = {
    THREE_BROKERS: ("tests/uploader_agent/faults/",),
    KAFKA: (
        "tests/consumer/",
        "tests/spark/cluster/test_clients.py",
        "tests/test_support_kafka.py",
        "tests/tidemark/cli/test_config_check.py",
        "tests/tidemark/decode/test_real_brokers.py",
        "tests/tidemark/onboarding/test_real.py",
        "tests/uploader_agent/broker/test_zookeeper.py",
        "tests/uploader_agent/cli/test_config_check.py",
        "tests/uploader_agent/hold/test_hold_real.py",
        "tests/uploader_agent/intake/test_mute_broker.py",
        "tests/uploader_agent/intake/test_requests.py",
        "tests/uploader_agent/test_branch_real.py",
        "tests/uploader_agent/test_fetching.py",
        "tests/uploader_agent/test_pinterest.py",
        "tests/uploader_agent/test_policies.py",
        "tests/uploader_agent/test_real.py",
        "tests/uploader_agent/test_remote_tier_real.py",
        "tests/uploader_agent/test_restored_brokers.py",
        "tests/uploader_agent/test_run.py",
        "tests/uploader_agent/test_storage_faults.py",
    ),
    END_TO_END: (
        "tests/end_to_end/test_airflow.py",
        "tests/end_to_end/test_private_authority.py",
        "tests/end_to_end/test_quick_start.py",
        "tests/end_to_end/test_reading.py",
        "tests/end_to_end/test_tutorial.py",
        "tests/end_to_end/test_whole_path.py",
    ),
    "Iceberg's catalog": ("tests/spark/mirror/",),
    "Spark's cluster": (
        "tests/spark/cluster/test_executors.py",
        "tests/spark/test_export.py",
        "tests/spark/convert/test_poison.py",
        "tests/spark/live/test_landing.py",
        "tests/spark/test_partitioned_readers.py",
        "tests/spark/test_spark.py",
    ),
}
"""The first entry that names a file counts."""

WITH_BROKERS: Final = {THREE_BROKERS, KAFKA, END_TO_END}
"""The groups that all tests with brokers are in, but for the long ones: no other process starts a broker."""


def group_of(test: str) -> str | None:
    """The group of a test, by its id or its file's path from the root; None if its file is in none."""
    return next((name for name, paths in _TOGETHER.items() if test.startswith(paths)), None)
