"""Each mutant of the catalog can be planted, and is seen. `make mutants` prints which test sees which."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.mutants.catalog import CATALOG
from tests.mutants.mutant import Mutant
from tests.mutants.planting import NotPlantable, Tree, mutated, nodeid
from tests.support.paths import ROOT

TESTS = sorted({test for mutant in CATALOG for test in mutant.tests})


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("mutant", CATALOG, ids=lambda mutant: mutant.rule)
def test_a_mutant_can_be_planted(mutant: Mutant) -> None:
    mutated((ROOT / mutant.file).read_text(), mutant)


@pytest.mark.parametrize("test", TESTS)
def test_a_test_that_must_see_a_mutant_is_there(test: str) -> None:
    file, _, function = nodeid(test).partition("::")
    assert re.search(rf"^def {function.partition('[')[0]}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mutant", CATALOG, ids=lambda mutant: mutant.rule)
def test_a_mutant_is_seen(tree: Tree, mutant: Mutant, tried: Callable[[str, int], None]) -> None:
    assert tree.caught(mutant).tests, f"no test sees that it does not hold: {mutant.rule}"
    tried("planted mutants", 1)


def test_what_changes_nothing_is_not_seen(tree: Tree) -> None:
    assert tree.caught(CATALOG[0]._replace(replacement=CATALOG[0].text)).tests == ()


@pytest.mark.full
def test_where_nothing_is_planted_all_tests_pass(tree: Tree) -> None:
    """They fail by the mutants, and not since they run in a copy."""
    assert tree.run(TESTS).tests == ()


@pytest.mark.parametrize("count", [0, 2])
def test_a_text_that_is_not_there_once_is_an_error(count: int) -> None:
    mutant = Mutant("a rule", "a file", "if it holds:", "if True:", ())
    with pytest.raises(NotPlantable, match=f"a file: has 'if it holds:' {count} times"):
        mutated("if it holds:" * count, mutant)
