"""What is said of the network's share, where nothing but Python is there."""

from __future__ import annotations

import subprocess
import sys

from demo.received import received, told
from tests.support.paths import ROOT

DEV = """\
Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame |bytes    packets errs drop fifo colls
    lo: 900000    9000    0    0    0     0   900000    9000    0    0    0     0
  eth0: 1500000    1000    0    0    0     0    20000     300    0    0    0     0
  eth1:    2000      10    0    0    0     0       10       1    0    0    0     0
"""


def test_what_other_machines_sent_is_counted() -> None:
    assert received(DEV.splitlines()) == 1_502_000


def test_the_seconds_count_in_which_something_came() -> None:
    seen = [0, 30_000_000, 60_000_000, 60_000_100, 60_000_200]
    assert told(seen, 20.0) == "all is there after 20 s; the network brought 60 MB in 10 s of them"


def test_the_command_s_code_is_passed_on_and_a_few_bytes_are_not_worth_a_line() -> None:
    command = [sys.executable, "-S", "-m", "demo.received", sys.executable, "-c", "print('here'); raise SystemExit(3)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (3, "here\n")
