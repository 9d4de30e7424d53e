"""The compiled code as a worker meets it: a fresh process, whatever it may write to, every access checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tidemark.records.build import simple
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


def run(path: Path, **env: str) -> list[str]:
    segment = path / "segment.log"
    segment.write_bytes(simple(0, 5, "zstd"))
    command = [sys.executable, "-c", DECODE, str(segment)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_worker_loads_neither_pandas_nor_a_kafka_client(tmp_path: Path) -> None:
    count, _, pandas, kafka = run(tmp_path, PYTHONPATH=str(INCLUDE))
    assert (count, pandas, kafka) == ("5", "False", "False")


def test_a_worker_that_may_write_nowhere_decodes_all_the_same(tmp_path: Path) -> None:
    code = tmp_path / "code"
    shutil.copytree(INCLUDE / "tidemark", code / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    # A file where numba's directories would have to be: not even root can write there.
    (code / "tidemark" / "decode" / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    home = str(tmp_path / "home")
    assert run(tmp_path, PYTHONPATH=str(code), HOME=home, XDG_CACHE_HOME=home)[0] == "5"


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
    """The tests of decoder, scan and hash, and the fuzz, compiled with bounds checks (and into another cache)."""
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    here = Path(__file__).parent
    files = [str(here / name) for name in ("test_decoder.py", "test_fuzz.py", "test_headers.py", "test_rowhash.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=here.parents[2])
    assert done.returncode == 0, done.stdout[-3000:]
    sys.stdout.write("".join(line for line in done.stdout.splitlines(keepends=True) if "damaged segments" in line))
