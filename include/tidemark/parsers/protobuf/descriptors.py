"""Protobuf's descriptors: a message by its name, from a descriptor set or from a registry's schemas."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from tidemark.parsers.schema_registry import Written
from tidemark.parsers.settings import SettingsFile

REGISTERED: Final = "registered.proto"
"""The name of a registry's file; its imports have names of their own."""

_KNOWN: Final = tuple(f"google/protobuf/{name}.proto" for name in ("any", "duration", "empty", "timestamp", "wrappers"))


def message_of(descriptors: SettingsFile, name: str) -> Descriptor:
    """The message's descriptor, in a pool of its own. Raises ValueError."""
    files = FileDescriptorSet()
    try:
        files.ParseFromString(descriptors.data)
    except DecodeError as error:
        raise ValueError(f"descriptors: {descriptors.path} is not a valid FileDescriptorSet: {error}") from error
    pool = descriptor_pool.DescriptorPool()
    present = {file.name for file in files.file}
    try:
        for known in _KNOWN:
            if known not in present:
                pool.AddSerializedFile(_well_known(known))
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise ValueError(f"message: {descriptors.path} has no message {name}") from error
    except TypeError as error:
        raise ValueError(f"descriptors: {descriptors.path} lacks an import: {error}") from error


def _well_known(name: str) -> bytes:
    from google.protobuf import any_pb2, duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2

    modules: tuple[Any, ...] = (any_pb2, duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2)
    files: dict[str, bytes] = {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in modules}
    return files[name]


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """The message's indexes from the file's messages inward, as Confluent's framing has them."""
    outer = message.containing_type
    if outer is None:
        names = [sibling.full_name for sibling in message.file.message_types_by_name.values()]
        return (names.index(message.full_name),)
    names = [sibling.full_name for sibling in outer.nested_types]
    return (*indexes_of(outer), names.index(message.full_name))


def registered_files(written: Written) -> FileDescriptorSet:
    """The descriptor set of a registered schema and its references. Raises ValueError."""
    files = FileDescriptorSet()
    for name, text in zip((*written.names, REGISTERED), written.texts, strict=True):
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, DecodeError, ValueError) as error:
            raise ValueError(f"{name}: the registry does not give its descriptor (format=serialized)") from error
        file.name = name
        files.file.append(file)
    return files
