"""Plants the mutants of the catalog, a few at the same time, and prints which test sees each: `make mutants`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalog import CATALOG
from tests.mutants.mutant import Mutant
from tests.mutants.planting import Caught, NotPlantable, Tree, mutated
from tests.support.orphans import OrphanWatch
from tests.support.paths import ROOT


def main(arguments: Sequence[str]) -> int:
    """Plant all mutants, or those whose rules have some of the words; 1 if one survives, or fits the code no more."""
    options = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    options.add_argument("words", nargs="*", help="plant only mutants whose rule has one of these words")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many are tried at the same time")
    chosen = options.parse_args(arguments)
    mutants = [mutant for mutant in CATALOG if not chosen.words or any(word in mutant.rule for word in chosen.words)]
    misfits = [error for error in map(_misfit, mutants) if error]
    if misfits:
        _say("\n".join(misfits))
        return 1
    survivors = _try_all(mutants, chosen.jobs)
    _say(f"{len(mutants)} mutants, of which {survivors} survived")
    return 1 if survivors else 0


def _misfit(mutant: Mutant) -> str:
    """Why ``mutant`` cannot be planted; empty if it can."""
    try:
        mutated((ROOT / mutant.file).read_text(), mutant)
    except NotPlantable as error:
        return str(error)
    return ""


def _try_all(mutants: Sequence[Mutant], jobs: int) -> int:
    """Try ``mutants`` in as many trees as there are ``jobs``; how many survived."""
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(jobs):
            trees.put(Tree(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-mutants-")))))

        def attempt(mutant: Mutant) -> Caught:
            tree = trees.get()
            try:
                return tree.caught(mutant)
            finally:
                trees.put(tree)

        tree = trees.get()
        untouched = tree.run({test for mutant in mutants for test in mutant.tests})
        trees.put(tree)
        assert not untouched.tests, f"{untouched.tests[0]} fails where nothing is planted"
        _say(f"{untouched.seconds:6.1f} s  nothing is planted: all tests pass")
        survivors = 0
        for mutant, caught in zip(mutants, pool.map(attempt, mutants), strict=True):
            survivors += not caught.tests
            seen = f"seen by {caught.tests[0].rpartition('/')[2]}" if caught.tests else f"SURVIVED, in {mutant.file}"
            _say(f"{caught.seconds:6.1f} s  {mutant.rule}\n          {seen}")
        return survivors


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    watch = OrphanWatch()
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        watch.close()
