"""Only `make test-kubernetes` starts a control plane: its programs take long to build for the first time."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TIDEMARK_KUBERNETES") == "1" else ["test_chart.py", "test_node.py"]
