"""A broker's log directory: real files, their times those of the simulation, and what inotify tells of them."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from crc32c import crc32c
from inotify_simple import Event, flags

from tests.uploader_agent.simulation.clock import START, Scheduler, Task
from tests.uploader_agent.simulation.faults import Faults
from uploader_agent.disk.watcher import DirectoryWatcher

_EXTENSIONS = ("log", "index", "timeindex", "snapshot")


class Watches:
    """What :class:`inotify_simple.INotify` is to the watcher. A watch belongs to a directory, not to its path."""

    def __init__(self, disk: LogDir, ready: Callable[[], None]) -> None:
        self.events: list[Event] = []
        self.numbers: dict[int, int] = {}  # of a watch → of the directory
        self._disk = disk
        self._ready = ready
        self._count = count(1)

    def fileno(self) -> int:
        return -1

    def add_watch(self, path: Path, _mask: int) -> int:
        directory = self._disk.directories.get(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        known = [number for number, one in self.numbers.items() if one == directory]
        number = known[0] if known else next(self._count)
        self.numbers[number] = directory
        return number

    def rm_watch(self, number: int) -> None:
        if self.numbers.pop(number, None) is None:
            raise OSError(errno.EINVAL, "no such watch")
        self.put(Event(number, flags.IGNORED, 0, ""))

    def read(self, timeout: int | None = None) -> list[Event]:
        assert timeout == 0
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        self.numbers.clear()

    def put(self, event: Event) -> None:
        self.events.append(event)
        self._ready()

    def overflow(self) -> None:
        """The queue was full: what it held before is kept, what came after is lost (inotify(7))."""
        self.put(Event(-1, flags.Q_OVERFLOW, 0, ""))


class SimulatedWatcher(DirectoryWatcher):
    """The agent's own watcher over simulated watches; only how it waits is another."""

    def __init__(self, disk: LogDir, scheduler: Scheduler, faults: Faults) -> None:
        self._scheduler = scheduler
        self._faults = faults
        self._rung = False
        self._waiting: Task | None = None
        self.watches = Watches(disk, self._wake)
        super().__init__(self.watches)

    def wake(self) -> None:
        self._rung = True
        self._wake()

    def _select(self, descriptors: list[int], timeout: float) -> list[int]:
        if not self._rung and not self.watches.events and timeout > 0:
            self._waiting = self._scheduler.current
            self._scheduler.park(min(timeout, 1e6))
            self._waiting = None
        self._rung = False
        return [-1] if self.watches.events else []

    def _wake(self) -> None:
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)


class LogDir:
    """``log.dirs`` of one directory, and who watches it."""

    def __init__(self, path: Path, scheduler: Scheduler, faults: Faults) -> None:
        self.path = path
        self.directories: dict[Path, int] = {}
        self.watches: Watches | None = None
        self._count = count(1)
        self._scheduler = scheduler
        self._faults = faults
        self.delete_delay = faults.within(1.0, 30.0)
        """``file.delete.delay.ms``, in seconds: what is given up first is unlinked first."""
        path.mkdir()
        self.made(path)

    def made(self, path: Path) -> None:
        """A directory is there that was not."""
        self.directories[path] = next(self._count)

    def touch(self, *paths: Path) -> None:
        """Set their times to the simulation's."""
        now = START + self._scheduler.now
        for path in paths:
            os.utime(path, (now, now))

    def tell(self, folder: Path, mask: int, name: str = "") -> None:
        """Tell inotify's news of ``folder``, as late and as often as the faults have it."""
        directory = self.directories[folder]
        faults, what = self._faults, f"{flags.from_mask(mask)[0].name} {folder.name}/{name}"
        faults.tell(f"   disk: {what}")
        if faults.strike("event_overflow", what):
            self._scheduler.call_later(0.0, self._overflow)
            return
        if faults.strike("event_dropped", what):
            return
        delay = faults.within(0.0, 3.0) if faults.strike("event_delayed", what) else 0.0
        self._scheduler.call_later(delay, lambda: self._deliver(directory, mask, name))
        if faults.strike("event_repeated", what):
            again = faults.within(0.0, 5.0)
            self._scheduler.call_later(again, lambda: self._deliver(directory, mask, name))

    def gone(self, folder: Path) -> None:
        """A directory was removed."""
        directory = self.directories.pop(folder)
        self._deliver(directory, flags.IGNORED, "")
        if self.watches is not None:
            self.watches.numbers = {n: one for n, one in self.watches.numbers.items() if one != directory}

    def _deliver(self, directory: int, mask: int, name: str) -> None:
        if self.watches is None:
            return
        for number, watched in self.watches.numbers.items():
            if watched == directory:
                self.watches.put(Event(number, mask, 0, name))

    def _overflow(self) -> None:
        if self.watches is not None:
            self.watches.overflow()


class PartitionDir:
    """A replica's directory, changed as Kafka changes it."""

    def __init__(self, disk: LogDir, name: str, topic_id: str, faults: Faults, scheduler: Scheduler) -> None:
        self.folder = disk.path / name
        self.bases = [0]
        self.deleted = False
        self._disk = disk
        self._faults = faults
        self._scheduler = scheduler
        self._epochs: list[tuple[int, int]] = []
        self.folder.mkdir()
        disk.made(self.folder)
        (self.folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        disk.touch(self.folder / "partition.metadata")
        disk.tell(disk.path, flags.CREATE | flags.ISDIR, name)
        self._begin(0)
        disk.touch(disk.path)

    def append(self, content: bytes) -> None:
        """Add batches to the active segment."""
        path = self.log(self.bases[-1])
        with path.open("ab") as log:
            log.write(content)
        self._disk.touch(path)

    def roll(self, base: int, opened: Mapping[int, int]) -> None:
        """Begin another segment at the log's end, where ``opened`` transactions are open: producer and first offset."""
        former = self.log(self.bases[-1]).with_suffix(".timeindex")
        self._disk.touch(former)
        self.bases.append(base)
        self._begin(base)
        if self._faults.strike("snapshot_late", f"{self.folder.name}/{base}"):
            self._scheduler.call_later(self._faults.within(0.0, 0.1), lambda: self._snapshot(base, opened))
        else:
            self._snapshot(base, opened)

    def epochs(self, entries: list[tuple[int, int]]) -> None:
        """Replace the epochs (epoch, start offset) of the log."""
        if entries == self._epochs or self.deleted:
            return
        self._epochs = list(entries)
        path = self.folder / "leader-epoch-checkpoint"
        lines = "".join(f"{epoch} {start}\n" for epoch, start in entries)
        path.with_suffix(".tmp").write_text(f"0\n{len(entries)}\n{lines}")
        path.with_suffix(".tmp").rename(path)
        self._changed(flags.MOVED_TO, path.name)

    def truncate(self, base: int, size: int) -> None:
        """Cut off what lies above ``size`` bytes of the segment at ``base``, which is the active one from now on."""
        for gone in [one for one in self.bases if one > base]:
            self._retire(gone)
        self.bases = [one for one in self.bases if one <= base]
        path = self.log(base)
        os.truncate(path, size)
        self._disk.touch(path, self.folder)

    def begin_again(self, base: int) -> None:
        """Drop all segments, and begin at ``base``."""
        for gone in self.bases:
            self._retire(gone)
        self.bases = [base]
        self._begin(base)

    def replace(self, logs: Mapping[int, bytes]) -> None:
        """Put other segments in place of all, as from a backup: the last one is active."""
        for path in self.folder.glob("0*"):
            path.unlink()
        self.bases = []
        for base, content in logs.items():
            self.bases.append(base)
            self._begin(base)
            self.append(content)

    def clean(self, base: int, content: bytes) -> None:
        """The cleaner replaces the segment at ``base`` (``LocalLog.replaceSegments``); its time stays."""
        modified = self.log(base).stat().st_mtime
        for extension in ("log", "index", "timeindex"):
            path = self.log(base).with_suffix(f".{extension}")
            path.rename(f"{path}.deleted")
            self._changed(flags.MOVED_TO, f"{path.name}.deleted")
            path.write_bytes(content if extension == "log" else b"")
            os.utime(path, (modified, modified))
            self._changed(flags.MOVED_TO, path.name)
        self._scheduler.call_later(self._disk.delete_delay, lambda: self._unlink(base))

    def retire(self, number: int) -> list[int]:
        """Retention: give up the first segments; their bases."""
        given_up = self.bases[:number]
        self.bases = self.bases[number:]
        for base in given_up:
            self._retire(base)
        return given_up

    def rename_away(self) -> None:
        """The topic is deleted: the directory gets another name, and is removed later."""
        self.deleted = True
        path = self.folder.with_name(f"{self.folder.name}.{self._disk.directories[self.folder]:032x}-delete")
        self._disk.tell(self.folder, flags.MOVE_SELF)
        self.folder.rename(path)
        self._disk.directories[path] = self._disk.directories.pop(self.folder)
        self.folder = path
        self._disk.tell(self._disk.path, flags.MOVED_TO | flags.ISDIR, path.name)
        self._disk.touch(self._disk.path)
        self._scheduler.call_later(self._faults.within(1.0, 20.0), self._remove)

    def log(self, base: int) -> Path:
        """Where the segment at ``base`` is."""
        return self.folder / f"{base:020d}.log"

    def _begin(self, base: int) -> None:
        for extension in ("log", "index", "timeindex"):
            path = self.log(base).with_suffix(f".{extension}")
            path.write_bytes(b"")
            self._disk.touch(path)
            self._changed(flags.CREATE, path.name)

    def _snapshot(self, base: int, opened: Mapping[int, int]) -> None:
        if self.deleted or base not in self.bases:
            return
        path = self.log(base).with_suffix(".snapshot")
        entries = (struct.pack(">qhiqiqiq", one, 0, -1, -1, -1, -1, -1, first) for one, first in opened.items())
        body = struct.pack(">i", len(opened)) + b"".join(entries)
        path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
        self._changed(flags.CREATE, path.name)

    def _retire(self, base: int) -> None:
        for extension in _EXTENSIONS:
            path = self.log(base).with_suffix(f".{extension}")
            if path.exists():
                path.rename(f"{path}.deleted")
                self._changed(flags.MOVED_TO, f"{path.name}.deleted")
        self._scheduler.call_later(self._disk.delete_delay, lambda: self._unlink(base))

    def _unlink(self, base: int) -> None:
        if not self.deleted:
            for path in self.folder.glob(f"{base:020d}.*.deleted"):
                path.unlink()
            self._disk.touch(self.folder)

    def _changed(self, mask: int, name: str) -> None:
        self._disk.touch(self.folder)
        self._disk.tell(self.folder, mask, name)

    def _remove(self) -> None:
        shutil.rmtree(self.folder)
        self._disk.gone(self.folder)
        self._disk.touch(self._disk.path)
