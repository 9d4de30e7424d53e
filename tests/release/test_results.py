from __future__ import annotations

import pytest

from release.results import CheckFailed, CheckOutcome, Result, exit_code, run, totals


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([CheckOutcome.passed, CheckOutcome.noted], 0),
        ([CheckOutcome.passed, CheckOutcome.unchecked], 3),
        ([CheckOutcome.unchecked, CheckOutcome.failed, CheckOutcome.passed], 1),
    ],
)
def test_a_check_that_was_not_made_has_an_exit_code_of_its_own(outcomes: list[CheckOutcome], code: int) -> None:
    assert exit_code([Result("subject", outcome, "detail") for outcome in outcomes]) == code


def test_totals_count_each_outcome() -> None:
    results = [
        Result("subject", outcome, "detail")
        for outcome in (CheckOutcome.passed, CheckOutcome.passed, CheckOutcome.unchecked)
    ]
    assert totals(results) == "2 passed, 0 failed, 1 not checked, 0 noted"


def test_a_program_that_fails_is_quoted() -> None:
    assert run("echo", "well") == "well\n"
    with pytest.raises(CheckFailed, match="sh -c 'echo ill >&2; exit 4' ended with code 4: ill"):
        run("sh", "-c", "echo ill >&2; exit 4")
