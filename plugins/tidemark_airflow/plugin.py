"""The Airflow plugin: the continuity page with its places in Airflow's pages, and rights to backfills by topic.

Airflow finds it by the entry point of the installed package, whatever its folder of plugins is.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tidemark_airflow.links.urls import PREFIX, base_path


class TidemarkPlugin(AirflowPlugin):
    """The parts that Airflow mounts. Workers, scheduler and triggerer load this class too, and never build the page."""

    name = "tidemark"
    external_views = [  # noqa: RUF012 - Airflow's interface: a list, which it edits
        # With a route it opens in Airflow's frame, whose address has the page's: it can be kept and sent.
        {
            "name": "Continuity",
            "href": f"{base_path()}{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "continuity",
        },
        {
            "name": "Continuity",
            "href": f"{base_path()}{PREFIX}/?dag_id={{DAG_ID}}",
            "destination": "dag",
            "url_route": "tidemark-continuity",
        },
    ]

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, made when the API server asks; a plain list would be made in every process."""
        from tidemark_airflow.web.app import page_app

        return [{"app": page_app(), "url_prefix": PREFIX, "name": "Tidemark continuity page"}]

    @property
    def fastapi_root_middlewares(self) -> list[Any]:  # type: ignore[override]
        """Rights to backfills by topic, made when the API server asks."""
        from tidemark_airflow.web.run_rights import RunRights

        return [{"middleware": RunRights, "args": [], "kwargs": {}, "name": "Tidemark's rights by topic"}]
