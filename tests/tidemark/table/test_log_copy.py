"""A copy of a Delta log follows what is in the store, whatever was done there, and makes the next version once."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.errors import PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store import LocalStore, ObjectInfo
from tidemark.table import log_copy
from tidemark.table.log_copy import LogCopy

ROOT = "tables/orders"
ROWS = pa.table({"a": pa.array([1], pa.int64())})


class Lake:
    """A table in a directory, and a copy of its log; ``reads`` are the requests of the copy, by the object's name."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.path = LocalStore(root), root / ROOT
        self.log = self.path / "_delta_log"
        self.temporary = root.with_name("temporary")
        self.temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))
        self.copy = LogCopy()
        self.reads = Counter[str]()
        get, listing = LocalStore.get, LocalStore.list

        def counted(store: LocalStore, key: str, **of: Any) -> Any:
            self.reads[key.rpartition("/")[2]] += 1
            return get(store, key, **of)

        def listed(store: LocalStore, prefix: str, **of: Any) -> Any:
            self.reads["LIST"] += 1
            return listing(store, prefix, **of)

        monkeypatch.setattr(LocalStore, "get", counted)
        monkeypatch.setattr(LocalStore, "list", listed)

    def directories(self) -> list[Path]:
        """Those of copies that are there."""
        return list(self.temporary.iterdir())

    def write(self, versions: int = 1) -> None:
        """So many commits of another program."""
        for _ in range(versions):
            write_deltalake(self.path, ROWS, mode="append")

    def look(self) -> DeltaTable | None:
        return self.copy.look(self.store, ROOT)

    def version(self) -> int:
        """By the copy; it has what the table has."""
        found, there = self.look(), DeltaTable(self.path)
        assert found is not None
        assert found.version() == there.version()
        assert sorted(found.get_add_actions()["path"].to_pylist()) == sorted(
            there.get_add_actions()["path"].to_pylist()
        )
        return found.version()

    def commit(self) -> None:
        """Make the next version by the copy."""
        delta = self.look()
        assert delta is not None
        with self.copy.next_version(self.store, ROOT):
            delta.alter.set_table_properties({"delta.appendOnly": "false"})


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(tmp_path / "lake", monkeypatch)


def name(version: int) -> str:
    return f"{version:020d}.json"


def test_there_is_no_table_before_there_is_one(lake: Lake) -> None:
    assert lake.look() is None
    lake.write()
    assert lake.version() == 0


def test_each_object_is_read_once_and_then_only_what_is_new(lake: Lake) -> None:
    lake.write(3)
    lake.version()
    assert lake.reads == {"_last_checkpoint": 1, "LIST": 1} | {name(number): 1 for number in range(3)}
    lake.reads.clear()
    first = lake.look()
    assert (lake.look(), lake.reads) == (first, {"LIST": 2})
    lake.write(2)
    lake.reads.clear()
    assert lake.version() == 4
    assert lake.reads == {"LIST": 1, name(3): 1, name(4): 1}


def test_a_copy_begins_at_the_last_checkpoint(lake: Lake) -> None:
    lake.write(4)
    DeltaTable(lake.path).create_checkpoint()
    lake.write(2)
    lake.reads.clear()
    assert lake.version() == 5
    assert lake.reads == {"_last_checkpoint": 1, "LIST": 1, f"{3:020d}.checkpoint.parquet": 1, name(4): 1, name(5): 1}


@pytest.mark.parametrize(
    "hint", [b"", b"{}", b"[]", b'{"version": 2, "size": 1}', b'{"version": 99}', b'{"version": -1}', None]
)
def test_a_checkpoint_is_found_without_a_note_of_it(lake: Lake, hint: bytes | None) -> None:
    lake.write(4)
    DeltaTable(lake.path).create_checkpoint()
    lake.write(2)
    (lake.log / "_last_checkpoint").unlink()
    if hint is not None:
        (lake.log / "_last_checkpoint").write_bytes(hint)
    lake.reads.clear()
    assert lake.version() == 5
    assert name(1) not in lake.reads


def test_a_log_whose_checkpoint_has_several_objects_is_copied_as_a_whole(lake: Lake) -> None:
    """As other programs make them; here delta-rs's own in the place of the two parts, which it reads both of."""
    lake.write(4)
    DeltaTable(lake.path).create_checkpoint()
    one = lake.log / f"{3:020d}.checkpoint.parquet"
    for number in range(3):
        (lake.log / name(number)).unlink()
    one.rename(lake.log / f"{3:020d}.checkpoint.0000000001.0000000001.parquet")
    (lake.log / "_last_checkpoint").write_bytes(b'{"version": 3, "size": 9, "parts": 1}')
    lake.write()
    assert lake.version() == 4


def test_a_log_that_was_made_again_is_read_again(lake: Lake) -> None:
    lake.write(3)
    lake.version()
    shutil.rmtree(lake.path)
    lake.write(3)
    lake.version()
    shutil.rmtree(lake.path)
    lake.write(1)
    assert lake.version() == 0
    shutil.rmtree(lake.path)
    assert lake.look() is None


def test_a_table_that_was_restored_is_seen(lake: Lake) -> None:
    lake.write(3)
    lake.version()
    DeltaTable(lake.path).restore(0)
    assert lake.version() == 3


def test_versions_that_were_taken_back_are_not_believed(lake: Lake) -> None:
    """As who copies a lake back from a backup does."""
    lake.write(3)
    lake.version()
    for number in (1, 2):
        (lake.log / name(number)).unlink()
    assert lake.version() == 0
    lake.write()
    assert lake.version() == 1


def test_what_is_cleaned_up_meanwhile_is_not_asked_for_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write(3)
    real = LocalStore.get

    def get(store: LocalStore, key: str, **of: Any) -> Any:
        if key.endswith(name(0)) and (lake.log / name(0)).exists():
            DeltaTable(lake.path).create_checkpoint()
            (lake.log / name(0)).unlink()
        return real(store, key, **of)

    monkeypatch.setattr(LocalStore, "get", get)
    assert lake.version() == 2


def test_a_copy_that_has_followed_for_long_begins_anew(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "_MOST_FOLLOWED", 3)
    for number in range(6):
        lake.write()
        assert lake.version() == number
        if number == 3:
            DeltaTable(lake.path).create_checkpoint()
    assert lake.reads["_last_checkpoint"] > 1


def test_the_next_version_is_created_once(lake: Lake) -> None:
    lake.write(2)
    lake.commit()
    assert lake.version() == 2
    lake.reads.clear()
    lake.commit()
    assert lake.version() == 3
    assert lake.reads == {"LIST": 2}, "what one has written oneself is known"


def test_a_version_follows_a_checkpoint_that_nothing_followed_yet(lake: Lake) -> None:
    lake.write(3)
    DeltaTable(lake.path).create_checkpoint()
    lake.reads.clear()
    lake.commit()
    assert lake.reads == {"_last_checkpoint": 1, "LIST": 1, f"{2:020d}.checkpoint.parquet": 1, name(2): 1}
    assert lake.version() == 3


def test_a_created_table_has_its_location_and_no_path_of_the_writer(lake: Lake) -> None:
    for copy in (lake.copy, LogCopy()):  # two processes have seen that there is none
        copy.create(lake.store, ROOT, "s3://lake/tables/orders", ROWS.schema, name="orders")
        assert lake.version() == 0
    lake.write()
    lake.commit()
    [created] = [entry for entry in DeltaTable(lake.path).history() if entry["operation"] == "CREATE TABLE"]
    assert created["operationParameters"]["location"] == "s3://lake/tables/orders"
    assert [path for path in lake.log.iterdir() if str(lake.temporary).encode() in path.read_bytes()] == []


def test_of_two_writers_one_is_first_and_the_other_sees_it(lake: Lake) -> None:
    lake.write()
    lake.look()
    other = LogCopy()
    other.look(lake.store, ROOT)
    lake.commit()
    delta = other.look(lake.store, ROOT)
    assert delta is not None
    lake.write()
    with pytest.raises(PreconditionFailed), other.next_version(lake.store, ROOT):
        delta.alter.set_table_properties({"delta.appendOnly": "true"})
    again = other.look(lake.store, ROOT)
    assert again is not None
    assert again.metadata().configuration == {"delta.appendOnly": "false"}
    assert again.version() == lake.version() == 2


@pytest.mark.parametrize("took_effect", [False, True])
def test_after_an_unknown_outcome_the_store_decides(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    lake.write()
    real = LocalStore.put

    def put(store: LocalStore, key: str, body: bytes, **of: Any) -> str:
        if took_effect:
            real(store, key, body, **of)
        raise UnknownOutcome(key, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", put)
        with pytest.raises(UnknownOutcome):
            lake.commit()
    assert lake.version() == int(took_effect)


def test_a_checkpoint_goes_to_the_store_after_its_version(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(lake.path, ROWS, configuration={"delta.checkpointInterval": "2"})
    real, written = LocalStore.put, []

    def put(store: LocalStore, key: str, body: bytes, **of: Any) -> str:
        written.append(key.rpartition("/")[2])
        return real(store, key, body, **of)

    monkeypatch.setattr(LocalStore, "put", put)
    lake.commit()
    assert written == [name(1), f"{1:020d}.checkpoint.parquet", "_last_checkpoint"]
    (lake.log / name(0)).unlink()
    lake.write()
    assert lake.version() == 2
    assert LogCopy().look(lake.store, ROOT) is not None


def test_a_name_that_leads_elsewhere_is_not_copied(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write()
    real = LocalStore.list

    def listed(store: LocalStore, prefix: str, **of: Any) -> Any:
        at = next(iter(real(store, prefix)))
        yield ObjectInfo(f"{prefix}../../../planted", 1, at.etag, at.modified)
        yield ObjectInfo(f"{prefix}.planted", 1, at.etag, at.modified)
        yield from real(store, prefix, **of)

    monkeypatch.setattr(LocalStore, "list", listed)
    assert lake.version() == 0
    assert "planted" not in lake.reads


def test_the_directory_goes_with_the_copy_and_the_tables_that_read_it(lake: Lake) -> None:
    lake.write()
    table = lake.look()
    assert table is not None
    del lake.copy
    gc.collect()
    assert table.transaction_version("any") is None, "which delta-rs reads the log for"
    assert len(lake.directories()) == 1
    del table
    gc.collect()
    assert not lake.directories()


def test_an_error_of_the_store_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write()

    def get(_store: LocalStore, key: str, **_: Any) -> Any:
        raise StoreError(key, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "get", get)
        with pytest.raises(StoreError, match="planted"):
            lake.look()
    assert lake.version() == 0


def test_a_child_that_ends_leaves_the_directory_to_its_parent(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process inherits what is to be done at the end."""
    lake.write()
    table = lake.look()
    assert table is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        del lake.copy, table
        gc.collect()
    assert len(lake.directories()) == 1


def test_the_directory_of_a_process_that_was_killed_is_removed_by_a_later_one(lake: Lake) -> None:
    lake.write()
    lake.look()
    [ours] = lake.directories()
    killed, young = (Path(tempfile.mkdtemp(prefix="tidemark-log-")) for _ in range(2))
    for path in (killed, young):
        (path / "lock").touch()
    for path in (ours, killed):
        os.utime(path, (0, 0))
    assert LogCopy().look(lake.store, ROOT) is not None
    assert sorted(lake.directories()) == sorted([ours, young])


class FarStore(LocalStore):
    """A store that is no directory, as far as its name says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.url = "s3://lake"


@pytest.fixture
def far(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lake:
    """A lake that is no directory, and a user without a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lake.store = FarStore(lake.path.parents[1])
    return lake


def another_process(lake: Lake) -> Counter[str]:
    """The requests of a process that looks at the table for the first time, and finds what is there."""
    lake.copy = LogCopy()
    lake.reads.clear()
    lake.version()
    return +lake.reads


def in_cache(lake: Lake) -> list[Path]:
    root = lake.path.parents[2] / "cache"
    return [path for path in root.rglob("*") if path.is_file() and path.name != "swept"]


def test_a_process_reads_only_what_no_other_has_read(far: Lake) -> None:
    far.write(3)
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, **{name(n): 1 for n in range(3)}}
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1}
    far.write()
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, name(3): 1}
    assert {path.stat().st_mode & 0o777 for path in in_cache(far)} == {0o600}


def test_a_version_that_was_made_again_is_read_again(far: Lake) -> None:
    far.write(2)
    another_process(far)
    shutil.rmtree(far.path)
    far.write(2)
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, name(0): 1, name(1): 1}


@pytest.mark.parametrize("damage", [b"", b"{}", b"\0" * 500])
def test_what_is_damaged_in_the_cache_is_read_again(far: Lake, damage: bytes) -> None:
    far.write(2)
    another_process(far)
    for path in in_cache(far):
        path.write_bytes(damage)
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, name(0): 1, name(1): 1}
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1}


def test_what_another_user_may_write_is_not_believed(far: Lake) -> None:
    far.write()
    another_process(far)
    for path in in_cache(far):
        path.chmod(0o622)
    assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, name(0): 1}


def test_the_cache_has_what_the_last_look_needed(far: Lake) -> None:
    far.write(4)
    another_process(far)
    assert len(in_cache(far)) == 4
    DeltaTable(far.path).create_checkpoint()
    another_process(far)
    assert len(in_cache(far)) == 2, "the checkpoint, and the newest version"
    other = next(path for path in (far.path.parents[2] / "cache").rglob("*") if path.is_dir() and len(path.name) == 32)
    long_ago = other.stat().st_mtime - 8 * 86400
    os.utime(other, (long_ago, long_ago))
    os.utime(other.parent / "swept", (long_ago, long_ago))
    far.write()
    LogCopy().look(LocalStore(far.path.parents[1]), ROOT)
    assert other.exists(), "a directory has no cache, and sweeps none"
    elsewhere = FarStore(far.path.parents[1])
    elsewhere.url = "s3://elsewhere"
    LogCopy().look(elsewhere, ROOT)
    assert not other.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    far: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    far.write(2)
    for _ in range(2):
        assert another_process(far) == {"LIST": 1, "_last_checkpoint": 1, name(0): 1, name(1): 1}
    assert "which cannot be written" in caplog.text
