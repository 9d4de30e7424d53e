"""Free ports on 127.0.0.1 that two callers never both get.

Asking the kernel for port 0 and closing it again is a race: another server may take it before ours binds it.
Here a port is taken by locking a file named after it, for as long as this process lives, and only then checked
to be free. Ports come from below the range that the kernel gives to outgoing connections.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
_FIRST, _LAST = 12_000, 31_999
_held: list[int] = []  # descriptors whose locks reserve this process's ports


def _lock(port: int) -> int | None:
    """A descriptor that holds the port's lock, or None if another process holds it."""
    folder = Path(tempfile.gettempdir()) / f"tidemark-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_free(port: int) -> bool:
    """Whether nobody listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """``count`` ports, reserved for this process and its children until it ends."""
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST + 1), _LAST + 1 - _FIRST):
        if len(found) == count:
            break
        descriptor = _lock(port)
        if descriptor is None:
            continue
        if is_free(port):
            _held.append(descriptor)
            found.append(port)
        else:
            os.close(descriptor)
    else:
        raise OSError(f"fewer than {count} free ports between {_FIRST} and {_LAST}")
    return found


def free_port() -> int:
    """One port, as by :func:`free_ports`."""
    return free_ports(1)[0]
