"""Run schedules of the simulation; print what failed, how to repeat it, and totals. Exit code 1 if one failed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from tests.uploader_agent.simulation.mutants import FAULTS, LOSSES, planted
from tests.uploader_agent.simulation.world import Result, run

_NAME = "tests.uploader_agent.simulation"


@dataclass
class Totals:
    """Of all schedules that were run."""

    schedules: int = 0
    failed: int = 0
    seconds: float = 0.0
    counted: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """One more schedule."""
        self.schedules += 1
        self.failed += result.failed
        self.seconds += result.seconds
        wrong = Counter({kind: 1 for kind in ("lies", "missing") if getattr(result, kind)})
        found = {"actions": result.actions, "faults": result.faults, "seen": result.seen, "wrong": wrong}
        for title, numbers in found.items():
            self.counted.setdefault(title, Counter()).update(numbers)

    def lines(self) -> list[str]:
        """For a terminal."""
        counted = [
            f"{title}: {', '.join(f'{kind} {number}' for kind, number in sorted(numbers.items()))}"
            for title, numbers in self.counted.items()
            if numbers
        ]
        return [f"{self.schedules} schedules, {self.failed} failed; {self.seconds / 3600:.2f} virtual hours", *counted]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first schedule's seed")
    parser.add_argument("--count", type=int, default=1, help="how many schedules, of consecutive seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--events", action="store_true", help="print the last events of those that do not fail, too")
    parser.add_argument("--compacted", action="store_true", help="compact the topics of all schedules")
    parser.add_argument("--fetching", action="store_true", help="let agents fetch, without brokers' disks")
    parser.add_argument("--restored", action="store_true", help="restore brokers from a backup")
    parser.add_argument("--plant", choices=[*FAULTS, *LOSSES], help="a fault or loss to plant in the agent")
    parser.add_argument(
        "--plant-each",
        nargs="*",
        choices=[*FAULTS, *LOSSES],
        metavar="NAME",
        help="see each of these faults, and no harm from any of these losses; all of them if none is named",
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"  # a set is gone through in the order of hashes: the same in every run
        os.execv(sys.executable, [sys.executable, "-m", _NAME, *sys.argv[1:]])  # noqa: S606 - this very program
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds = range(options.first, options.first + options.count)
    if options.plant_each is not None:
        return _plant_each(seeds, options.plant_each or [*FAULTS, *LOSSES])
    totals = Totals()
    for seed in seeds:
        result = _run(
            seed, options.plant, compacted=options.compacted, fetching=options.fetching, restored=options.restored
        )
        totals.add(result)
        if result.failed:
            restored = ["  with --restored"] if options.restored else []
            _say(*_failure(result, options.plant, compacted=options.compacted, fetching=options.fetching), *restored)
        if options.events or (result.failed and not options.keep_going):
            _say(str(result.schedule), "the last events:", *result.told)
        if result.failed and not options.keep_going:
            break
    _say(*totals.lines())
    sys.stderr.write(f"{time.process_time():.1f} s of CPU\n")
    return 1 if totals.failed else 0


def _run(
    seed: int, name: str | None, *, compacted: bool = False, fetching: bool = False, restored: bool = False
) -> Result:
    with planted(name) as mutant:
        if mutant is None:
            return run(seed, compacted=compacted, fetching=fetching, restored=restored)
        return run(
            seed,
            replicated=mutant.replicated,
            compacted=compacted or mutant.compacted,
            fetching=fetching or mutant.fetching,
            unclean=mutant.unclean,
            careless=mutant.careless,
            restored=restored or mutant.restored,
        )


def _plant_each(seeds: Sequence[int], names: Sequence[str]) -> int:
    """Exit code 1 if a fault is not seen in any schedule, or a loss does harm in one of the first quarter of them."""
    wrong = 0
    for name in names:
        tried = seeds if name in FAULTS else seeds[: len(seeds) // 4]
        failed = next((result for seed in tried if (result := _run(seed, name)).failed), None)
        wrong += (failed is None) == (name in FAULTS)
        if failed is None:
            _say(f"{name}: nothing fails in {len(tried)} schedules")
        else:
            _say(f"{name}: seen in schedule {1 + failed.schedule.seed - seeds[0]}", *_failure(failed, name))
    return 1 if wrong else 0


def _failure(result: Result, name: str | None, *, compacted: bool = False, fetching: bool = False) -> list[str]:
    kinds = f"{' --compacted' if compacted else ''}{' --fetching' if fetching else ''}"
    options = f"{f' --plant {name!r}' if name else ''}{kinds}"
    again = f"python -m {_NAME} --first {result.schedule.seed}{options}"
    lies = [f"  not true: {one}" for one in result.lies[:3]]
    return [f"FAILED {again}, after {result.seconds:.3f} s", *lies, *(f"  missing: {one}" for one in result.missing)]


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
