"""The package's description as an Airflow provider: ``airflow providers get tidemark-kafka`` shows it.

Airflow calls :func:`get_provider_info` while it is being imported, so nothing of Airflow is imported here. The plugin
is not listed: it has an entry point of its own, and Airflow would refuse it the second time.
"""

from __future__ import annotations

from typing import Any, Final

from tidemark_airflow.options import OPTIONS, SECTION

_NAME: Final = "Tidemark"


def get_provider_info() -> dict[str, Any]:
    """The description in Airflow's schema of providers, ``provider_info.schema.json``."""
    return {
        "package-name": "tidemark-kafka",
        "name": _NAME,
        "description": "Kafka's log segments to date-partitioned Parquet tables, with a proof for every offset.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": "", "tags": ["software"]}],
        "operators": _modules("operators", "backfill", "landing", "spark_job"),
        "sensors": _modules("sensors", "watermark"),
        "triggers": _modules("triggers", "landing", "watermark"),
        "notifications": [
            "tidemark_airflow.notifications.notifiers.LogNotifier",
            "tidemark_airflow.notifications.webhook.WebhookNotifier",
        ],
        "extra-links": [
            *(f"tidemark_airflow.links.operator_links.{name}Link" for name in ("Continuity", "Table", "Plan", "Spark")),
            "tidemark_airflow.operators.backfill.ReportLink",
        ],
        "config": {
            SECTION: {
                "description": "Where Tidemark's DAGs find the topics file, Spark and people.",
                "options": {option.name: option.described() for option in OPTIONS},
            }
        },
    }


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"tidemark_airflow.{package}.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]
