"""Only `make test-containers` starts containers: that builds images, and takes the ports of the compose file."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TIDEMARK_CONTAINERS") == "1" else ["test_compose_up.py"]
