"""Run schedules of the model; print what failed and how to repeat it. Exit code 1 if one failed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.live_end.model import RULES
from tests.live_end.schedule import Result, run

_NAME = "python -m tests.live_end"
_LAST = 120
"""How many of the last actions are printed."""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first schedule's seed")
    parser.add_argument("--count", type=int, default=1, help="how many schedules, of consecutive seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--actions", action="store_true", help="print the actions of those that do not fail, too")
    parser.add_argument("--compacted", action="store_true", help="compact the topic in all schedules")
    parser.add_argument("--off", choices=list(RULES), metavar="RULE", help="a rule to switch off")
    parser.add_argument(
        "--each-off",
        nargs="*",
        choices=list(RULES),
        metavar="RULE",
        help="see each rule's absence; all if none is named",
    )
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count)
    if options.each_off is not None:
        return _each_off(seeds, options.each_off or list(RULES))
    failed = 0
    for seed in seeds:
        result = run(seed, options.off, compacted=options.compacted)
        failed += bool(result.wrong)
        if result.wrong:
            _say(*_failure(result, options.off, "--compacted" if options.compacted else ""))
        if options.actions or (result.wrong and not options.keep_going):
            _say(*result.actions[:1], *result.actions[1:][-_LAST:])
        if result.wrong and not options.keep_going:
            break
    _say(f"{len(seeds)} schedules, {failed} failed; {time.process_time():.1f} s of CPU")
    return 1 if failed else 0


def _each_off(seeds: Sequence[int], rules: Sequence[str]) -> int:
    """Exit code 1 if no schedule fails without one of the rules."""
    unseen = 0
    for rule in rules:
        compacted = RULES[rule].compacted
        failed = next(
            (
                result
                for seed in seeds
                if (result := run(seed, rule, compacted=compacted)).wrong and not run(seed, compacted=compacted).wrong
            ),
            None,
        )
        unseen += failed is None
        if failed is None:
            _say(f"{rule}: nothing fails in {len(seeds)} schedules")
        else:
            _say(
                f"{rule}: seen in schedule {1 + failed.seed - seeds[0]}",
                *_failure(failed, rule, "--compacted" if compacted else ""),
            )
    return 1 if unseen else 0


def _failure(result: Result, rule: str | None, option: str = "") -> list[str]:
    again = f"{_NAME} --first {result.seed}{f' --off {rule!r}' if rule else ''} {option}".rstrip()
    return [f"FAILED {again}", *(f"  {one}" for one in result.wrong[:3])]


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
