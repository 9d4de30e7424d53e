"""What a wheel carries beside its packages: the DAG files, Spark's programs, deploy/ and an example of the topics file.

They lie below ``tidemark/shipped`` in the checkout's own layout, where :mod:`tidemark.installation` finds them. An
editable installation has none of it: it uses the checkout's.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = {
    "dags": "dags",
    "deploy": "deploy",
    "include/topics.yaml": "deploy/topics.example.yaml",
    "spark/jobs": "spark/jobs",
}
"""By path in the checkout the path below ``tidemark/shipped``."""


class ShippedFiles(BuildHookInterface[Any]):
    """Adds :data:`SHIPPED` to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """``version`` is hatchling's name of the wheel's kind: ``standard`` or ``editable``."""
        if version == "standard":
            for source, target in SHIPPED.items():
                build_data["force_include"][f"{self.root}/{source}"] = f"tidemark/shipped/{target}"
