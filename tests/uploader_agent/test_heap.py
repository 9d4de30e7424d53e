"""The memory of large buffers goes back to the system, each time."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys
from uploader_agent.heap import LARGE, configure_heap

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Info
if sys.argv[1] == "configured":
    configure_heap()
del_me = bytearray(8 * LARGE)
del del_me
before = mallinfo2().hblkhd
kept = bytearray(8 * LARGE)
print(mallinfo2().hblkhd - before >= 8 * LARGE)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library is not glibc 2.33 or newer")
@pytest.mark.parametrize(("how", "mapped"), [("configured", "True"), ("as it is", "False")])
def test_a_second_large_buffer_is_mapped_as_the_first_was(how: str, mapped: str) -> None:
    """Glibc would else take it from an arena, as one of that size was freed before."""
    told = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True).stdout
    assert told.strip() == mapped
