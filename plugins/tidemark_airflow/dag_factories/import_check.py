"""Whether the DAG files import: asked in a process of its own, as the DAG processor does.

A task of Airflow 3 cannot see the metadata database, where import errors are recorded, and the REST API would need
an account of its own in each deployment. So the files are imported again, on a worker, which must be able to do that
in any case to run their tasks: only those that import Tidemark, only when one of them, the topics file or Tidemark's
own code has changed, and else every ten minutes. Run as a program, this module is that process.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from tidemark.monitoring.observer_state import Imports
from tidemark_airflow import settings

_AGAIN_AFTER: Final = timedelta(minutes=10)
_LIMIT: Final = timedelta(minutes=3)
_MARK: Final = "TIDEMARK-IMPORT-ERRORS "
_LONGEST: Final = 4000


def checked(folder: Path, before: Imports | None, now: datetime) -> Imports:
    """What came of importing the DAG files of ``folder`` that are Tidemark's, anew if it is time to."""
    files = ours(folder)
    digest = _digest([*files, *Path(__file__).parent.rglob("*.py"), settings.topics_file()])
    if before is not None and before.digest == digest and now - before.at < _AGAIN_AFTER:
        return before
    return _found(digest, import_errors(files), before, now)


def failed(name: str, error: str, before: Imports | None, now: datetime) -> Imports:
    """That the file ``name`` is wrong, which is why no DAG file imports; they are asked again when it is right."""
    return _found("", {name: error}, before, now)


def _found(digest: str, errors: dict[str, str], before: Imports | None, now: datetime) -> Imports:
    since = before.since if before else {}
    return Imports(digest=digest, at=now, errors=errors, since={name: since.get(name, now) for name in errors})


def ours(folder: Path) -> list[Path]:
    """The Python files of ``folder`` that import Tidemark's part of Airflow."""
    return [path for path in sorted(folder.rglob("*.py")) if b"tidemark_airflow" in path.read_bytes()]


def import_errors(files: Iterable[Path]) -> dict[str, str]:
    """The error of each file that does not import, by its name."""
    with tempfile.TemporaryDirectory(prefix="tidemark-imports-") as folder:
        # A worker's environment names no database, on purpose, and Airflow does not start without the name of one.
        nowhere = f"sqlite:///{folder}/none.db"
        env = {**os.environ, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": nowhere}
        env.pop("AIRFLOW__CORE__SQL_ALCHEMY_CONN", None)
        command = [sys.executable, "-m", "tidemark_airflow.dag_factories.import_check", *map(str, files)]
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_LIMIT.total_seconds(), check=False
            )
        except subprocess.TimeoutExpired:
            return {"the DAG files": f"importing them takes longer than {_LIMIT}"}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            found: Mapping[str, str] = json.loads(line.removeprefix(_MARK))
            return {Path(name).name: error[-_LONGEST:] for name, error in found.items()}
    return {"the DAG files": f"the process that imports them ended with {done.returncode}\n{done.stderr[-_LONGEST:]}"}


def _digest(files: Iterable[Path]) -> str:
    seen = hashlib.sha256()
    for path in sorted(set(files)):
        if path.exists():
            status = path.stat()
            seen.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]


def main() -> None:
    """Import the files that the arguments name, and print the errors."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=os.devnull, collect_dags=False)
    for name in sys.argv[1:]:
        bag.process_file(name, only_if_updated=False, safe_mode=False)  # type: ignore[no-untyped-call] # Airflow's
    sys.stdout.write(f"\n{_MARK}{json.dumps(bag.import_errors)}\n")


if __name__ == "__main__":
    main()
