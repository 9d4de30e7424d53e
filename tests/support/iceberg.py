"""Iceberg's own programs: its REST catalog, as its own tests serve it, and its readers in Java."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.jars import class_path
from tests.support.java_client import JavaGatewayProcess
from tests.support.paths import site_packages
from tests.support.ports import HOST

_FILES: Final = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}


class _IcebergJvm(JavaGatewayProcess):
    """A JVM with a jar set of Iceberg's, and Hadoop from Spark's jars; its log lies in ``folder``."""

    def __init__(self, jars: str, folder: Path, *others: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        spark = site_packages("dev") / "pyspark" / "jars"
        names = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", *others)
        more = [str(jar) for name in names for jar in spark.glob(f"{name}-[0-9]*.jar")]
        path = os.pathsep.join((class_path(jars), *more))
        super().__init__(path, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", log=folder / "java.log")

    def _initialize(self, catalog: Any, properties: dict[str, str]) -> None:
        """Let ``catalog`` begin; it has Hadoop's files of this machine, without more files for their checksums."""
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        catalog.setConf(conf)
        found = self.jvm.java.util.HashMap()
        for name, value in {**properties, **_FILES}.items():
            found.put(name, value)
        catalog.initialize("catalog", found)


class RestCatalogs(_IcebergJvm):
    """Iceberg's REST catalogs over tables in files of this machine; usable with ``with``.

    What answers is the servlet that Iceberg's tests use. Its own ``RESTCatalogServer`` would listen on all addresses.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet."""
        super().__init__("iceberg-rest", folder)

    @contextmanager
    def catalog(self) -> Iterator[str]:
        """A catalog that is empty at first: its URI, which answers until the end."""
        iceberg, jetty = self.jvm.org.apache.iceberg, self.jvm.org.eclipse.jetty
        catalog = iceberg.jdbc.JdbcCatalog()
        database = self._folder / f"{uuid.uuid4().hex}.db"
        places = {"uri": f"jdbc:sqlite:{database}", "warehouse": f"file://{self._folder}"}
        self._initialize(catalog, {**places, "clients": "1", "jdbc.schema-version": "V1"})
        servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
        context = jetty.ee10.servlet.ServletContextHandler()
        context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(self.jvm.java.net.InetSocketAddress(HOST, 0))
        server.setHandler(context)
        server.start()
        try:
            yield f"http://{HOST}:{server.getConnectors()[0].getLocalPort()}"
        finally:
            server.stop()
            catalog.close()


class JavaReader(_IcebergJvm):
    """Iceberg 1.12.0's generic reader; usable with ``with``."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet. What is read passes through files in ``folder``."""
        super().__init__("iceberg-spark-4.1", folder, "slf4j-api", "zstd-jni")
        self._passed = folder / "rows.parquet"

    def rows(self, uri: str, name: str) -> pa.Table:
        """The rows of a table in the REST catalog at ``uri``."""
        iceberg = self.jvm.org.apache.iceberg
        catalog = iceberg.rest.RESTCatalog()
        try:
            self._initialize(catalog, {"uri": uri})
            table = catalog.loadTable(iceberg.catalog.TableIdentifier.parse(name))
            self._write(table.schema(), iceberg.data.IcebergGenerics.read(table).build())
        finally:
            catalog.close()
        return pq.read_table(self._passed)

    def _write(self, schema: Any, records: Any) -> None:
        """Write ``records`` to the file that passes them on: Java has them one by one."""
        iceberg = self.jvm.org.apache.iceberg
        place = iceberg.encryption.EncryptionUtil.plainAsEncryptedOutput(iceberg.Files.localOutput(str(self._passed)))
        kind = self.jvm.java.lang.Class.forName("org.apache.iceberg.data.Record")
        writer = (
            iceberg.formats.FormatModelRegistry.dataWriteBuilder(iceberg.FileFormat.PARQUET, kind, place)
            .schema(schema)
            .spec(iceberg.PartitionSpec.unpartitioned())
            .overwrite()
            .build()
        )
        try:
            found = records.iterator()
            while found.hasNext():
                writer.write(found.next())
        finally:
            writer.close()
            records.close()
