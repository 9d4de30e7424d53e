"""Where kernels are kept: by a kernel that takes no time to compile, in processes of its own."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HUNG, wait_until

INCLUDE = Path(__file__).parents[3] / "include"
MODULE = """
from numba import types
from tidemark.decode.jit import helper, kernel

FACTOR = 2

@helper
def times(number, factor):
    return number * factor

@kernel(types.int64)
def scaled(number):
    return times(number, FACTOR)
"""
CALL = """
import sys
from tidemark.decode import compile, kernel_cache
kernel_cache.MODULES = ("scaling",)
kernel_cache._registered.clear()  # the decoder's own
if sys.argv[1:]:
    sys.exit(compile.main(sys.argv[2:]))
import scaling
print(scaling.scaled(21), scaling.scaled.file_name)
"""
COMPILED = re.compile(r"compiling 1 of the decoder's kernels into (.*): takes about \d+ s\ncompiled in .* s\n")


class Machine:
    """Processes with a checkout at ``path / checkout`` each, and one cache."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cache = path / "cache"

    def command(self, checkout: str, *arguments: str, module: str = MODULE) -> list[str]:
        folder = self.path / checkout
        folder.mkdir(exist_ok=True)
        (folder / "scaling.py").write_text(module)
        setup = f"import sys; sys.prefix = {str(self.path / 'prefix')!r}; sys.path[:0] = [{str(folder)!r}]\n"
        return [sys.executable, "-B", "-c", setup + CALL, *arguments]

    def env(self, **others: str) -> dict[str, str]:
        own = {"PYTHONPATH": str(INCLUDE), "NUMBA_CACHE_DIR": str(self.cache)}
        return {**os.environ, **own, **others}

    def run(self, checkout: str, *arguments: str, module: str = MODULE, **env: str) -> tuple[list[str], str]:
        """What is printed, and what is said beside that."""
        command = self.command(checkout, *arguments, module=module)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.env(**env))
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr

    def files(self) -> list[Path]:
        return [path for path in self.cache.iterdir() if path.name != ".lock"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def first_compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, str]:
    """A machine of which one process has compiled the kernel, whose file has this name; to be copied, not used."""
    machine = Machine(tmp_path_factory.mktemp("compiled"))
    (_, name), _ = machine.run("first")
    return machine, name


@pytest.fixture
def compiled(machine: Machine, first_compiled: tuple[Machine, str]) -> str:
    """The name of the kernel's file, which lies in the machine's cache as if a process had compiled it there."""
    shutil.copytree(first_compiled[0].cache, machine.cache)
    return first_compiled[1]


def test_a_kernel_is_compiled_once_for_all_processes_and_checkouts_and_that_is_said(machine: Machine) -> None:
    (value, name), said = machine.run("first")
    assert value == "42"
    assert (found := COMPILED.fullmatch(said)), said
    assert found[1] == str(machine.cache)
    assert [path.name for path in machine.files()] == [name]
    for hash_seed in ("1", "2"):
        assert machine.run("second", PYTHONHASHSEED=hash_seed) == (["42", name], "")


def test_to_load_a_kernel_imports_nothing_of_the_compiler(machine: Machine, compiled: str) -> None:
    """Numba's own cache imports all of it: most of a second for a process that decodes a few records."""
    told = MODULE + "\nimport atexit, sys; atexit.register(lambda: print('numba.np.linalg' in sys.modules))"
    assert machine.run("first", module=told) == (["42", compiled, "False"], "")


def test_a_comment_changes_no_kernel(machine: Machine, compiled: str) -> None:
    module = "# A line more.\n" + MODULE.replace("return number", "# Why.\n    return number")
    assert machine.run("first", module=module) == (["42", compiled], "")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("FACTOR = 2", "FACTOR = 3", "63"),
        ("number * factor", "number + factor", "23"),
        ("kernel(types.int64)", "kernel(types.float64)", "42.0"),
    ],
)
def test_a_changed_constant_helper_or_type_is_compiled_again(
    machine: Machine, old: str, new: str, expected: str
) -> None:
    (value, _), said = machine.run("first", module=MODULE.replace(old, new))
    assert value == expected
    assert COMPILED.fullmatch(said)


def test_code_that_moved_into_another_module_is_compiled_again(machine: Machine) -> None:
    """The former file names the module where the helper was, which is gone: it could not be loaded."""
    helper = "@helper\ndef times(number, factor):\n    return number * factor\n"
    assert helper in MODULE
    former = machine.path / "former"
    former.mkdir()
    (former / "multiplying.py").write_text(f"from tidemark.decode.jit import helper\n\n{helper}")
    module = MODULE.replace(helper, "from multiplying import times\n")
    assert machine.run("former", module=module)[0][0] == "42"
    (value, _), said = machine.run("first")
    assert value == "42"
    assert COMPILED.fullmatch(said)


def test_code_with_other_settings_is_kept_apart(machine: Machine, compiled: str) -> None:
    names = {machine.run("first", **env)[0][1] for env in ({"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_CPU_NAME": "generic"})}
    assert len(names | {compiled}) == 3


def test_others_wait_for_the_one_that_compiles(machine: Machine) -> None:
    machine.cache.mkdir()
    with (machine.cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = machine.path / "said"
        with said.open("w") as errors:
            waiting = subprocess.Popen(
                machine.command("first"), stderr=errors, stdout=subprocess.PIPE, env=machine.env()
            )
        wait_until(lambda: "waiting for another process that compiles" in said.read_text(), what="the second process")
        # The one with the lock compiles into a directory of its own, and puts it in place.
        machine.run("first", NUMBA_CACHE_DIR=str(machine.path / "other"))
        [made] = [path for path in (machine.path / "other").iterdir() if path.name != ".lock"]
        made.rename(machine.cache / made.name)
    out, _ = waiting.communicate(timeout=HUNG)
    assert out.split() == [b"42", made.name.encode()]
    assert "compiling" not in said.read_text()


def test_an_installation_serves_all_of_its_users(machine: Machine) -> None:
    _, said = machine.run("first", "compile", "--installation")
    assert (found := COMPILED.fullmatch(said)), said
    assert found[1] == str(machine.path / "prefix" / "share" / "tidemark" / "kernels")
    (value, _), said = machine.run("first", HOME="/nowhere", NUMBA_CACHE_DIR="")
    assert (value, said) == ("42", "")
    told, said = machine.run("first", "compile", "--installation")
    assert (" ".join(told), said) == (f"the decoder's kernels are compiled already: {found[1]}", "")


def test_where_nothing_can_be_written_a_process_compiles_for_itself_and_says_so(machine: Machine) -> None:
    machine.cache.write_text("not even root can make a directory here")
    (value, _), said = machine.run("first")
    assert value == "42"
    assert said.startswith("compiling scaling.scaled only for this process, in about 3 s: ")
    with pytest.raises(AssertionError, match="the decoder's kernels cannot be written: "):
        machine.run("first", "compile")


@pytest.mark.usefixtures("compiled")
def test_a_damaged_file_is_named_and_replaced(machine: Machine) -> None:
    [made] = machine.files()
    made.write_bytes(made.read_bytes()[:100])
    (value, _), said = machine.run("first")
    assert value == "42"
    damaged, compiling = said.split("\n", 1)
    assert damaged == f"{made} is damaged and not loaded"
    assert COMPILED.fullmatch(compiling)
    assert machine.run("first")[1] == ""


def test_a_damaged_installation_costs_only_the_kernel_that_is_damaged(machine: Machine) -> None:
    both = MODULE + MODULE[MODULE.index("@kernel") :].replace("scaled", "other")
    call = "import scaling; scaling.scaled(1); print(scaling.other(2))"
    machine.run("first", "compile", "--installation", module=both)
    [made] = (machine.path / "prefix").rglob("scaling.other-*")
    made.write_bytes(made.read_bytes()[:-1])
    command = machine.command("first", module=both)
    command[3] = command[3].replace(CALL[CALL.index("import scaling") :], call)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=machine.env())
    assert done.stdout == "4\n", done.stderr
    damaged, compiling = done.stderr.split("\n", 1)
    assert damaged == f"{made} is damaged and not loaded"
    assert COMPILED.fullmatch(compiling)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.usefixtures("compiled")
def test_machine_code_that_somebody_else_wrote_is_not_loaded(machine: Machine) -> None:
    [made] = machine.files()
    os.chown(made, 12345, 12345)
    (value, _), said = machine.run("first")
    assert value == "42"
    assert said.startswith(f"{made} is not loaded: its owner is neither this user, root nor the code's owner\n")


def test_arguments_of_another_type_are_an_error(machine: Machine) -> None:
    with pytest.raises(AssertionError, match="No matching definition"):
        machine.run("first", module=MODULE.replace("types.int64", "types.int64[:]"))
