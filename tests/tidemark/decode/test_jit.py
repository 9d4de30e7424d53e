"""The compiled code as a worker meets it: a fresh process, whatever it may write to, every access checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tidemark.kafka_log.build import simple
from tidemark.decode import kernel_cache
from tidemark.decode.jit import copy_bytes

DECODE = """
import sys
from tidemark.decode import decode_batches, row_hash_sum, scan_headers
data = open(sys.argv[1], "rb").read()
headers = scan_headers(data, "x", 0)
[rows] = decode_batches(data, headers, name="x", partition=0, incarnation=0)
print(len(rows), row_hash_sum(rows), "pandas" in sys.modules, "kafka" in sys.modules)
"""
INCLUDE = Path(__file__).parents[3] / "include"


def run(path: Path, **env: str) -> tuple[list[str], str]:
    """What a new process prints that decodes, and what it says beside that."""
    segment = path / "segment.log"
    segment.write_bytes(simple(0, 5, "zstd"))
    command = [sys.executable, "-c", DECODE, str(segment)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_a_worker_loads_neither_pandas_nor_a_kafka_client_and_compiles_nothing(tmp_path: Path) -> None:
    run(tmp_path, PYTHONPATH=str(INCLUDE))  # the kernels are compiled now, if installation has not
    (count, _, pandas, kafka), said = run(tmp_path, PYTHONPATH=str(INCLUDE))
    assert (count, pandas, kafka, said) == ("5", "False", "False", "")


def test_another_checkout_of_the_code_compiles_nothing(tmp_path: Path) -> None:
    run(tmp_path, PYTHONPATH=str(INCLUDE))
    code = tmp_path / "code"
    shutil.copytree(INCLUDE / "tidemark", code / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    for path in code.rglob("*.py"):
        path.touch()
    (count, *_), said = run(tmp_path, PYTHONPATH=str(code))
    assert (count, said) == ("5", "")


def test_all_kernels_are_compiled_at_installation() -> None:
    package = INCLUDE / "tidemark"
    found = {path for path in package.rglob("*.py") if "\n@kernel(" in path.read_text()}
    assert {".".join(path.relative_to(INCLUDE).with_suffix("").parts) for path in found} == set(kernel_cache.MODULES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["bytes", *kernel_cache.PARSERS])
def test_a_topic_needs_no_kernel_but_those_of_its_kind_of_parser(kind: str) -> None:
    parser = {"bytes": "base", "json": "json.batch"}.get(kind, f"{kind}.parser")
    made = (
        f"import sys; from tidemark.decode import kernel_cache; kernel_cache.load_all({{{kind!r}}}); "
        f"import tidemark.parsers.{parser}; "
        "print(*(name for name, one in kernel_cache._registered.items() if not one.ready)); "
        "print(*(name for name in sys.modules if name in kernel_cache.MODULES))"
    )
    done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True)
    left, loaded = done.stdout.splitlines()
    assert left == ""
    others = {module for modules in kernel_cache.PARSERS.values() for module in modules}
    assert set(loaded.split()) & others == set(kernel_cache.PARSERS.get(kind, ()))


def test_all_kernels_can_be_loaded_before_the_first_batch() -> None:
    """Else their seconds would count as those of the first batch, which a worker does not have."""
    command = (
        "from tidemark.decode import kernel_cache; kernel_cache.load_all(); "
        "print(*(one.ready for one in kernel_cache._registered.values()))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 10


@pytest.mark.parametrize("arguments", [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, 11), (6, 0, 5), (0, 16, 5)])
def test_a_copy_out_of_bounds_is_an_error(arguments: tuple[int, int, int]) -> None:
    at, start, size = arguments
    source = np.zeros(20, np.uint8)
    source.flags.writeable = False
    with pytest.raises(IndexError):
        copy_bytes(np.zeros(10, np.uint8), at, source, start, size)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_access_is_within_bounds(tmp_path: Path) -> None:
    """The tests of decoder, scan, hash and JSON's parts, and the fuzz, with bounds checks, in another cache."""
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    env.pop("TIDEMARK_JOURNAL", None)  # in which these tests stand as done, without bounds checks
    here = Path(__file__).parent
    names = ("test_decoder.py", "test_fuzz.py", "test_batch_headers.py", "test_rowhash.py")
    files = [*(str(here / name) for name in names), str(here.parent / "parsers" / "test_json_parts.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=here.parents[2])
    assert done.returncode == 0, done.stdout[-3000:]
    sys.stdout.write("".join(line for line in done.stdout.splitlines(keepends=True) if "damaged segments" in line))
