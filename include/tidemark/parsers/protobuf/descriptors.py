"""Protobuf's descriptors: a message by its name, from a descriptor set or from a registry's schemas."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from tidemark.parsers.schema_registry import Written
from tidemark.parsers.settings import SettingsFile

REGISTERED: Final = "registered.proto"
"""The name of a registry's file; its imports have names of their own."""

_GOOGLE: Final = re.compile(r"google/(?:protobuf|type)/([a-z_]+)\.proto")
_CONFLUENT: Final[Mapping[str, str]] = {
    "confluent/meta.proto": """
        package: "confluent" syntax: "proto3" message_type { name: "Meta"
          field { name: "doc" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
          field { name: "tags" number: 3 label: LABEL_REPEATED type: TYPE_STRING } }""",
    "confluent/type/decimal.proto": """
        package: "confluent.type" syntax: "proto3" message_type { name: "Decimal"
          field { name: "value" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES }
          field { name: "precision" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 }
          field { name: "scale" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 } }""",
}
"""The files that Confluent's registry knows without a reference. Of ``Meta``, which annotates schemas and is in no
record, only the plain fields are here."""


def parsed_files(descriptors: SettingsFile) -> FileDescriptorSet:
    """The descriptor set of a file. Raises ValueError."""
    files = FileDescriptorSet()
    try:
        files.ParseFromString(descriptors.data)
    except DecodeError as error:
        raise ValueError(f"descriptors: {descriptors.path} is not a valid FileDescriptorSet: {error}") from error
    return files


def message_in(files: FileDescriptorSet, name: str, source: str) -> Descriptor:
    """The message's descriptor in ``files``, which errors call ``source``, in a pool of its own. Raises ValueError."""
    pool = descriptor_pool.DescriptorPool()
    by_name = {file.name: file for file in files.file}
    added: set[str] = set()
    missing: list[str] = []

    def add(path: str) -> None:
        """Add a file after its imports. An unknown import is left out: often only options need it."""
        if path in added:
            return
        added.add(path)
        known = by_name.get(path) or well_known(path)
        if known is None:
            missing.append(path)
            return
        file = FileDescriptorProto()
        file.CopyFrom(known)
        for imported in known.dependency:
            add(imported)
        del file.dependency[:], file.public_dependency[:], file.weak_dependency[:]
        file.dependency.extend(imported for imported in known.dependency if imported not in missing)
        public = [known.dependency[index] for index in known.public_dependency]
        file.public_dependency.extend(index for index, imported in enumerate(file.dependency) if imported in public)
        pool.AddSerializedFile(file.SerializeToString())

    try:
        for path in by_name:
            add(path)
        return pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise ValueError(f"message: {source} has no message {name}") from error
    except TypeError as error:
        lacks = f"lacks an import, perhaps {', '.join(missing)}" if missing else "contradicts itself"
        raise ValueError(f"descriptors: {source} {lacks}: {error}") from error


def well_known(name: str) -> FileDescriptorProto | None:
    """A file that needs no reference in a registry: Google's common types, and Confluent's; None for any other."""
    if name in _CONFLUENT:
        return text_format.Parse(_CONFLUENT[name], FileDescriptorProto(name=name))
    found = _GOOGLE.fullmatch(name)
    if found is None:
        return None
    try:
        module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    except ModuleNotFoundError:
        return None
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


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
