"""Only `make test-containers` runs these tests: they build images, and take the ports of the compose file."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TIDEMARK_CONTAINERS") == "1" else ["test_*.py"]
