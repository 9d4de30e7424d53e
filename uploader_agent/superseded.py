"""What a diverging segment replaces is copied aside first, so that no uploaded byte is ever destroyed.

The copies lie under ``_superseded/<cluster>/<topic>-<p>/<epoch>/<CRC32C of the .log>/``, in the bucket of the data
itself: a topic that is kept apart stays apart. The folder named by the checksum keeps two replacements under one
epoch from meeting, and makes a repetition harmless.
"""

from __future__ import annotations

from tidemark.layout import ControlKeys, PartitionKeys
from tidemark.store import ObjectInfo, Store
from uploader_agent.objects import stored_checksum

_EXTENSIONS = {"log", "index", "timeindex", "txnindex", "corrupt", "manifest.json"}


def copy_aside(store: Store, keys: PartitionKeys, base_offset: int, log: ObjectInfo, epoch: int) -> list[str]:
    """Copy the stored set of ``base_offset``, whose ``.log`` is ``log``, and return the copies' keys.

    The manifest's copy comes last. Raises PreconditionFailed if an object is replaced meanwhile.
    """
    control = ControlKeys(keys.endpoint.prefix, keys.cluster)
    folder = control.superseded(keys.place, keys.partition, epoch) + f"{stored_checksum(store, log):08x}/"
    prefix = keys.segment(base_offset, "")
    found = {info.key.removeprefix(prefix): info for info in store.list(prefix)}
    copies: list[str] = []
    for extension in sorted(found, key=lambda name: (name == "manifest.json", name)):
        if extension in _EXTENSIONS:
            target = folder + found[extension].key.removeprefix(keys.folder)
            store.copy(found[extension].key, target, source_etag=found[extension].etag)
            copies.append(target)
    return copies
