"""Compile the decoder's kernels: ``python -m tidemark.decode.compile [--installation] [--parser KIND ...]``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tidemark.decode import kernel_cache


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the missing kernels, for this user or for all users of this environment; 1 if they cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.decode.compile", description=__doc__)
    parser.add_argument(
        "--installation",
        action="store_true",
        help=f"for all users of this environment: into {kernel_cache.installation()} instead of the user's cache",
    )
    parser.add_argument(
        "--parser",
        action="append",
        metavar="KIND",
        help="only what topics with parsers of this kind need (may be repeated); a process that needs more compiles it",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    folder = kernel_cache.installation() if options.installation else kernel_cache.written_folder()
    try:
        made = kernel_cache.ensure(folder, options.parser or tuple(kernel_cache.PARSERS))
    except OSError as error:
        sys.stderr.write(f"the decoder's kernels cannot be written: {error}\n")
        return 1
    if not made:
        sys.stdout.write(f"the decoder's kernels are compiled already: {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
