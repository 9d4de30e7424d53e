"""Iceberg's own programs: its REST catalog, as its own tests serve it, and its readers in Java."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from tests.support.jars import class_path
from tests.support.java_client import JavaGatewayProcess
from tests.support.paths import ROOT, cache_dir, env_bin, env_python, site_packages
from tests.support.ports import HOST
from tests.support.spark import local_conf, s3a_conf

_FILES: Final = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}

# What Spark's launcher opens for it, as far as it needs that here.
_OPENED: Final = (
    *("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)


class _IcebergJvm(JavaGatewayProcess):
    """A JVM with a jar set of Iceberg's, and Hadoop from Spark's jars; its log lies in ``folder``.

    With an endpoint ``s3``, it also has what lies there; the credentials are the environment's.
    """

    def __init__(self, jars: str, folder: Path, *others: str, s3: str | None = None) -> None:
        self._folder, self._s3 = folder, s3
        folder.mkdir(parents=True, exist_ok=True)
        spark = site_packages("dev") / "pyspark" / "jars"
        names = ["hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", *others]
        names += ["netty-*", "jackson-*", "commons-codec", "commons-lang3"] if s3 else []
        more = [str(jar) for name in names for jar in spark.glob(f"{name}-[0-9]*.jar")]
        first = [class_path("spark-s3a")] if s3 else []  # of one of its classes, Iceberg's tests have their own
        path = os.pathsep.join((*first, class_path(jars), *more))
        super().__init__(path, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", log=folder / "java.log")

    def _initialize(self, catalog: Any, properties: dict[str, str]) -> None:
        """Let ``catalog`` begin, with objects in S3, or with files here that have no others for their checksums."""
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        if self._s3 is None:
            conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        else:
            conf.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
            for name, value in s3a_conf(self._s3).items():
                conf.set(name.removeprefix("spark.hadoop."), value)
        catalog.setConf(conf)
        found = self.jvm.java.util.HashMap()
        for name, value in {**properties, **_FILES}.items():
            found.put(name, value)
        catalog.initialize("catalog", found)


class RestCatalogs(_IcebergJvm):
    """Iceberg's REST catalogs over tables in files of this machine or in S3; usable with ``with``.

    What answers is the servlet that Iceberg's tests use. Its own ``RESTCatalogServer`` would listen on all addresses.
    """

    def __init__(self, folder: Path, *, s3: str | None = None) -> None:
        """Nothing is started yet."""
        super().__init__("iceberg-rest", folder, s3=s3)

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


class SparkReader(JavaGatewayProcess):
    """Spark 4.1 with Iceberg 1.12.0; usable with ``with``. It has no driver in Python."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet. What is read passes through files in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        path = os.pathsep.join((f"{spark_jars()}/*", class_path("iceberg-spark-4.1")))
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        super().__init__(path, "-Xmx1g", *opened, log=folder / "java.log")
        self._catalogs: dict[str, str] = {}
        self.session: Any = None
        """Spark's session, as Java has it."""

    @override
    def _start(self) -> None:
        super()._start()
        builder = self.jvm.org.apache.spark.sql.SparkSession.builder().master("local[1]")
        for name, value in {
            **local_conf(),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
        }.items():
            builder.config(name, value)
        self.session = builder.getOrCreate()

    @override
    def __exit__(self, *error: object) -> None:
        self.session.stop()
        super().__exit__(*error)

    def rows(self, uri: str, name: str) -> pa.Table:
        """The rows of a table in the REST catalog at ``uri``."""
        catalog = self._catalogs.get(uri)
        if catalog is None:
            catalog = self._catalogs[uri] = f"catalog{len(self._catalogs)}"
            self.know(catalog, uri)
        return self.collect(self.session.table(f"{catalog}.{name}"))

    def know(self, catalog: str, uri: str) -> None:
        """Give the REST catalog at ``uri`` the name ``catalog``."""
        for setting, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": uri,
            ".cache-enabled": "false",
            **{f".{key}": value for key, value in _FILES.items()},
        }.items():
            self.session.conf().set(f"spark.sql.catalog.{catalog}{setting}", value)

    def collect(self, frame: Any) -> pa.Table:
        """The rows of a DataFrame of Java's."""
        passed = self._folder / "rows"
        frame.coalesce(1).write().mode("overwrite").parquet(str(passed))
        return pq.read_table(passed)


def spark_jars() -> Path:
    """The jars of PyPI's Spark 4.1."""
    return packages("spark-4.1") / "pyspark" / "jars"


def packages(name: str) -> Path:
    """A folder of the cache with what ``requirements/<name>.txt`` pins, installed when it is first asked for."""
    pins = ROOT / "requirements" / f"{name}.txt"
    folder = cache_dir() / "packages"
    target = folder / f"{name}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                install(pins, Path(work) / "packages")
                (Path(work) / "packages").rename(target)
    return target


def install(pins: Path, target: Path) -> None:
    """Install what ``pins`` names into the folder ``target``, from where the Makefile does it."""
    command: list[str | Path] = [env_bin("build", "uv"), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--python", env_python("build"), "--target", target, "--requirement", pins]
    asked: list[str | Path] = [env_bin("build", "pip"), "config", "get", "global.index-url"]
    index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    environment = {"UV_CACHE_DIR": str(cache_dir() / "uv"), **({"UV_DEFAULT_INDEX": index} if index else {})}
    subprocess.run(command, env={**environment, **os.environ}, check=True)


class JavaReader(_IcebergJvm):
    """Iceberg 1.12.0's generic reader; usable with ``with``."""

    def __init__(self, folder: Path, *, s3: str | None = None) -> None:
        """Nothing is started yet. What is read passes through files in ``folder``."""
        super().__init__("iceberg-spark-4.1", folder, "slf4j-api", "zstd-jni", s3=s3)
        self._passed = folder / "rows.parquet"

    def rows(self, uri: str, name: str) -> pa.Table:
        """The rows of a table in the REST catalog at ``uri``."""
        iceberg = self.jvm.org.apache.iceberg
        catalog = iceberg.rest.RESTCatalog()
        try:
            self._initialize(catalog, {"uri": uri})
            table = catalog.loadTable(iceberg.catalog.TableIdentifier.parse(name))
            self._write(table.schema(), iceberg.data.IcebergGenerics.read(table).build())
            names = [column.name() for column in table.schema().columns()]
        finally:
            catalog.close()
        return pq.read_table(self._passed).rename_columns(names)  # the file has them as Avro allows

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
