"""The operator's command line: ``tidemark``.

Every command but those marked by :func:`tidemark.cli.options.writes` only reads. ``--output json`` gives one JSON
document for programs. Exit codes: 0 done, 1 an error of the store or of an object in it, an acknowledgement of offsets
that are in no open gap, offsets that are lost, missing or do not add up, a backfill that failed, a restore that cannot
continue, or a capacity that is exceeded, 2 a wrong configuration or command line, 3 a backfill that has not ended in
time, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys

from tidemark.cli.app import app
from tidemark.errors import ConfigError, TidemarkError


def main() -> None:
    """The entry point of the ``tidemark`` program."""
    try:
        app()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"tidemark: {error}\n")
        sys.exit(1)


__all__ = ["main"]
