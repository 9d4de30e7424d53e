"""Avro's own reader in Java, from the jars that pip's pyspark ships, as the reference for schema resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.support.java_client import JavaGatewayProcess
from tests.support.paths import site_packages

_PAIRS = 2_000
"""Pairs of schemas for one JVM: ``GenericDatumReader`` keeps a decoder for each pair that it has ever read."""


class JavaAvro(JavaGatewayProcess):
    """A JVM with ``GenericDatumReader``; logical types change nothing, as it converts none."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        super().__init__(str(site_packages("dev") / "pyspark" / "jars" / "*"))
        self._pairs = 0

    def resolved(self, writer: str, reader: str, records: Sequence[bytes]) -> list[bytes | str]:
        """Each of ``records``, which ``writer`` wrote, encoded by ``reader``; or Java's reason to refuse it.

        All are read at once, as the items of an array; one by one only if that fails.

        Raises:
            ValueError: Java refuses a schema.
        """
        if not records:
            return []
        self._pairs += 1
        if self._pairs % _PAIRS == 0:
            self.__exit__()
            self._start()
        avro = self.jvm.org.apache.avro
        try:
            parser = avro.Schema.Parser
            theirs, ours = parser().parse(writer), parser().parse(reader)
            datum = avro.generic.GenericDatumReader(avro.Schema.createArray(theirs), avro.Schema.createArray(ours))
        except Py4JJavaError as error:
            raise ValueError(str(error.java_exception)) from error
        encoder = avro.generic.GenericDatumWriter(ours)
        try:
            return self._read(datum, encoder, records)
        except Py4JJavaError:
            pass
        found: list[bytes | str] = []
        for one in records:
            try:
                found += self._read(datum, encoder, [one])
            except Py4JJavaError as error:
                found.append(str(error.java_exception))
        return found

    def _read(self, datum: Any, encoder: Any, records: Sequence[bytes]) -> list[bytes | str]:
        io = self.jvm.org.apache.avro.io
        count = len(records) * 2  # a zigzag varint of one byte
        assert count < 0x80
        decoder = io.DecoderFactory.get().binaryDecoder(bytes([count]) + b"".join(records) + b"\0", None)
        items = datum.read(None, decoder)
        assert decoder.isEnd(), "Java has read less than a record"
        found: list[bytes | str] = []
        for item in items:
            target = self.jvm.java.io.ByteArrayOutputStream()
            binary = io.EncoderFactory.get().directBinaryEncoder(target, None)
            encoder.write(item, binary)
            found.append(target.toByteArray())
        return found
