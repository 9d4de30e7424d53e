"""What a diverging segment replaces is copied aside first, so that no uploaded byte is ever destroyed.

The copies lie under ``_superseded/<cluster>/<topic>-<p>/<epoch>/<CRC32C of the .log>/``, in the bucket of the data
itself: a topic that is kept apart stays apart. The folder named by the checksum keeps two replacements under one
epoch from meeting, and makes a repetition harmless.
"""

from __future__ import annotations

from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.store import ObjectInfo, Store
from uploader_agent.remote import manifests
from uploader_agent.remote.objects import find, stored_checksum

_EXTENSIONS = ("log", "index", "timeindex", "txnindex", "corrupt")


def copy_aside(store: Store, keys: PartitionKeys, base_offset: int, log: ObjectInfo, epoch: int) -> list[str]:
    """Copy the stored set of ``base_offset``, whose ``.log`` (or ``.corrupt``) is ``log``; return the copies' keys.

    The manifest's copy comes last. Raises PreconditionFailed if an object is replaced meanwhile.
    """
    control = ControlKeys(keys.endpoint.prefix, keys.cluster)
    folder = control.superseded(keys.place, keys.partition, epoch) + f"{stored_checksum(store, log):08x}/"
    stored = manifests.read(store, keys, base_offset)
    snapshots = {name for name in stored.manifest.objects if name.endswith(".snapshot")} if stored else set()
    segment = [keys.segment(base_offset, extension) for extension in _EXTENSIONS]
    copies: list[str] = []
    for key in [*segment, *map(keys.file, snapshots), keys.segment(base_offset, manifests.EXTENSION)]:
        there = find(store, key)
        if there is not None:
            target = folder + key.removeprefix(keys.folder)
            store.copy(key, target, source_etag=there.etag)
            copies.append(target)
    return copies
