"""The tiers of the tests in Airflow's environment."""

from __future__ import annotations

from tests.test_tiers import (
    test_a_command_that_starts_a_server_is_refused_without_the_marker,
    test_a_server_that_runs_already_is_refused_without_the_marker,
    test_the_tiers_are_all_tests_and_none_is_in_two,
)

__all__ = [
    "test_a_command_that_starts_a_server_is_refused_without_the_marker",
    "test_a_server_that_runs_already_is_refused_without_the_marker",
    "test_the_tiers_are_all_tests_and_none_is_in_two",
]
