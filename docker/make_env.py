"""Writes docker/.env for docker-compose.yaml: each variable of .env.example with a random value of its own.

Needs Python alone. An existing file is kept: its keys are in the store and the database by now.
"""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def values(example: str) -> str:
    """``example`` with a value behind each name; all are letters, digits, ``-``, ``_`` and, in Fernet keys, ``=``."""
    lines = [line if line.startswith("#") else f"{line}{_value(line)}" for line in example.splitlines() if line]
    return "\n".join(lines) + "\n"


def _value(line: str) -> str:
    name = line.removesuffix("=")
    if name == "AIRFLOW_FERNET_KEY":
        return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return secrets.token_hex(10 if name.endswith("_ACCESS_KEY") else 24)


def main() -> int:
    """Write the file, readable by its owner alone; 1 if there is one."""
    path = HERE / ".env"
    text = values((HERE / ".env.example").read_text(encoding="utf-8"))
    try:
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        sys.stderr.write(f"{path} exists and is kept: delete it to have other values\n")
        return 1
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(
        f"{path} is written: AIRFLOW_ADMIN_PASSWORD and AIRFLOW_REVIEWER_PASSWORD are for Airflow's pages\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
