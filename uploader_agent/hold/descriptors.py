"""How many descriptors may be kept open."""

from __future__ import annotations

import resource

HEADROOM = 512
"""Descriptors left for sockets, for uploads under way, and for everything else."""

MOST = 1 << 16
"""Each pins an inode and a directory entry in the kernel's memory, about 1.3 KiB."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one (``RLIMIT_NOFILE``); how many may be kept open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return budget(hard)


def budget(limit: int) -> int:
    """How many descriptors may be kept under a ``limit`` of open files; half of a small one."""
    if limit == resource.RLIM_INFINITY:
        return MOST
    return min(max(limit - HEADROOM, limit // 2), MOST)
