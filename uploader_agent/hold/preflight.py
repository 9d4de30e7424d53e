"""Tests how well holding can work on this machine: on each log directory, with the broker's own files.

Nothing is left behind, and only the directories for links are written to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from uploader_agent.disk.log_dirs import find_partitions
from uploader_agent.hold.held_segments import link
from uploader_agent.settings import HoldSettings
from uploader_agent.tuning import STANDARD

logger = structlog.get_logger(__name__)

RESTART = timedelta(seconds=30)
"""The assumed time from the end of an agent until its successor has looked at all log directories."""

_DELETE_DELAY = "file.delete.delay.ms"
_IN_PROPERTIES = "log.segment.delete.delay.ms"  # the broker's name of the topic setting file.delete.delay.ms
_DELETE_DELAY_MS = 60_000  # Kafka's default

Means = Literal["links", "descriptors", "none"]

_WORDS: dict[Means, str] = {
    "links": "hard links: survives retention, and a restart of the agent",
    "descriptors": "descriptors: survives retention, but not a restart of the agent",
    "none": "nothing: retention can take segments before they are uploaded",
}


class Guarantee(NamedTuple):
    """The guarantee on a log directory, also in words, and the reason that it is not stronger."""

    log_dir: str
    means: Means
    guarantee: str
    because: str | None


class DeleteDelay(NamedTuple):
    """The broker's ``file.delete.delay.ms``: its value, the least value it should have, and the reason."""

    value: int
    at_least: int
    because: str


def check(log_dirs: Collection[Path], settings: HoldSettings) -> list[Guarantee]:
    """Try to hold a file on each of ``log_dirs``."""
    return [_check(log_dir, settings) for log_dir in log_dirs]


def delete_delay(guarantees: Collection[Guarantee], properties: dict[str, str]) -> DeleteDelay:
    """The broker's ``file.delete.delay.ms``, and the least value that is safe here. Topics may override it."""
    text = properties.get(_IN_PROPERTIES, "")
    value = int(text) if text.isdecimal() else _DELETE_DELAY_MS
    if all(guarantee.means == "links" for guarantee in guarantees):
        return DeleteDelay(value, 0, "hard links hold segments that retention deletes, even while the agent is down")
    at_least = STANDARD.scan_interval + RESTART
    because = "segments that retention deletes while the agent is down can be found as .deleted only for this long"
    return DeleteDelay(value, round(at_least.total_seconds() * 1000), because)


def tell(guarantees: Collection[Guarantee], delay: DeleteDelay, settings: HoldSettings) -> None:
    """Log where holding is weaker than ``settings`` ask for, as an agent starts."""
    for guarantee in guarantees if settings.enabled else ():
        if guarantee.means == "none" or (settings.links and guarantee.means != "links"):
            logger.warning("holding_is_weaker", **guarantee._asdict())
    if settings.enabled and delay.value < delay.at_least:
        logger.warning("delete_delay_too_short", setting=_DELETE_DELAY, **delay._asdict())


def lines(guarantees: Collection[Guarantee], delay: DeleteDelay) -> list[str]:
    """The guarantees and the delete delay in lines of text, for a terminal."""
    held = [
        f"holding {guarantee.log_dir}: {guarantee.guarantee}{f' ({guarantee.because})' if guarantee.because else ''}"
        for guarantee in guarantees
    ]
    if delay.at_least:
        enough = "is enough" if delay.value >= delay.at_least else "IS TOO SHORT"
        return [*held, f"{_DELETE_DELAY}: {delay.value} {enough}: at least {delay.at_least}, as {delay.because}"]
    return [*held, f"{_DELETE_DELAY}: {delay.value}, and may be anything: {delay.because}"]


def _check(log_dir: Path, settings: HoldSettings) -> Guarantee:
    def answer(means: Means, because: str | None) -> Guarantee:
        return Guarantee(str(log_dir), means, _WORDS[means], because)

    if not settings.enabled:
        return answer("none", "hold.enabled is false")
    sample = next(_samples(log_dir), log_dir / "meta.properties")
    try:
        descriptor = os.open(sample, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return answer("none", f"cannot read the broker's files: {error}")
    try:
        if not settings.links:
            return answer("descriptors", "hold.links is not set")
        problems = [_try_link(descriptor, sample, folder) for folder in settings.links]
    finally:
        os.close(descriptor)
    if None in problems:
        return answer("links", None)
    return answer("descriptors", "; ".join(problem for problem in problems if problem))


def _samples(log_dir: Path) -> Iterator[Path]:
    """The ``.log`` files in ``log_dir``, to try a link with."""
    for folder in find_partitions([log_dir]).partitions.values():
        with suppress(OSError):  # if it cannot be listed, opening meta.properties shows why
            yield from sorted(folder.glob("*.log"))


def _try_link(descriptor: int, sample: Path, folder: Path) -> str | None:
    """The reason that no hard link of an open file can be made in ``folder``; None if a link can be made."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".check-{os.getpid()}"
    try:
        probe.mkdir(mode=0o700, parents=True)
        link(descriptor, probe / "probe")
    except OSError as error:
        return f"no hard link of {sample} can be made in {folder}: {error.strerror}"
    finally:
        shutil.rmtree(probe, ignore_errors=True)
        for path in missing:
            with suppress(OSError):  # it may not have been made
                path.rmdir()
    return None
