"""Hive's metastore 2.3, from the jars that Spark ships, with a database of its own in memory."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.support.java_client import JavaGatewayProcess
from tests.support.paths import site_packages
from tests.support.ports import HOST, free_port
from tests.support.waiting import HUNG


class HiveMetastore(JavaGatewayProcess):
    """One metastore, at :attr:`uri`; usable with ``with``.

    ``HiveMetaStore.main`` would listen on all addresses, so its handler is served here.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet. The log lies in ``folder``, and databases get folders there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        jars = site_packages("dev") / "pyspark" / "jars"
        options = {
            "derby.stream.error.file": f"{self._folder}/derby.log",
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:memory:{uuid.uuid4().hex};create=true",
            "datanucleus.connectionPoolingType": "none",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file://{self._folder}/warehouse",
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        super().__init__(f"{jars}/*", "-Xmx256m", *given, log=folder / "java.log")
        self._port = free_port()
        self._handler: Any = None
        self._server: Any = None
        self._serving: Any = None
        self.uri = f"thrift://{HOST}:{self._port}"

    @override
    def _start(self) -> None:
        super()._start()
        hive = self.jvm.org.apache.hadoop.hive
        conf = hive.conf.HiveConf()
        conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        self._handler = hive.metastore.HiveMetaStore.newRetryingHMSHandler("tests", conf, False)
        hive.metastore.txn.TxnDbUtil.prepDb(conf)  # the tables of locks, which DataNucleus does not make
        processor = hive.metastore.TSetIpAddressProcessor(self._handler)
        thrift = self.jvm.org.apache.thrift
        transport = thrift.transport.TServerSocket(self.jvm.java.net.InetSocketAddress(HOST, self._port))
        arguments = thrift.server.TThreadPoolServer.Args(transport).processor(processor)
        self._server = thrift.server.TThreadPoolServer(arguments)
        # A thread of Java's own: a call from here would end when the gateway's time limit has passed.
        runnable = self.jvm.java.lang.Class.forName("java.lang.Runnable")
        self._serving = self.jvm.java.lang.Thread(
            self.jvm.java.beans.EventHandler.create(runnable, self._server, "serve")
        )
        self._serving.start()  # its socket listens already, so nobody has to wait

    def forget(self) -> None:
        """Remove all databases but Hive's own, and their tables; files stay."""
        for name in self._handler.get_all_databases():
            if name != "default":
                self._handler.drop_database(name, False, True)

    @override
    def __exit__(self, *about: object) -> None:
        self._server.stop()
        self._serving.join(int(1000 * HUNG))
        super().__exit__(*about)
