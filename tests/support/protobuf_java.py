"""Protobuf's own runtime in Java, as a second reference for what records say by the schema that wrote them."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.support.jars import fetch
from tests.support.java_client import JavaGatewayProcess
from tests.support.paths import site_packages


class JavaProtobuf(JavaGatewayProcess):
    """A JVM with ``DynamicMessage``."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        spark = site_packages("dev") / "pyspark" / "jars" / "*"
        super().__init__(f"{fetch('protobuf-java')}/*:{spark}")

    def message(self, file: FileDescriptorProto, name: str) -> Any:
        """The descriptor of a message of ``file``, which imports nothing."""
        java = self.jvm.com.google.protobuf
        parsed = java.DescriptorProtos.FileDescriptorProto.parseFrom(file.SerializeToString())
        none = self._gateway.new_array(java.Descriptors.FileDescriptor, 0)
        return java.Descriptors.FileDescriptor.buildFrom(parsed, none).findMessageTypeByName(name)

    def read(self, message: Any, data: bytes) -> dict[str, Any]:
        """The fields of a record: null for one with presence that is not set."""
        return self._fields(self.jvm.com.google.protobuf.DynamicMessage.parseFrom(message, data))

    def _fields(self, message: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in message.getDescriptorForType().getFields():
            name = field.getName()
            if field.isRepeated():
                count = message.getRepeatedFieldCount(field)
                found[name] = [self._value(message.getRepeatedField(field, at)) for at in range(count)]
            elif field.hasPresence() and not message.hasField(field):
                found[name] = None
            else:
                found[name] = self._value(message.getField(field))
        return found

    def _value(self, value: Any) -> Any:
        if isinstance(value, bool | int | float | str):
            return value
        if hasattr(value, "toByteArray") and value.getClass().getSimpleName().endswith("ByteString"):
            return bytes(value.toByteArray())
        if value.getClass().getSimpleName() == "EnumValueDescriptor":
            return value.getName() if value.getIndex() >= 0 else str(value.getNumber())
        return self._fields(value)
