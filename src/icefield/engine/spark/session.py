"""Spark sessions bound to an address of the server.

A session's Iceberg catalog is bound once, to a prefix; what that prefix stands for moves on the server. The name of the
catalog is ``lake`` and it is the default catalog, so ``INSERT INTO sales.orders`` works.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from icefield.engine.port import EngineFailed
from icefield.engine.spark.jars import verified_jar
from icefield.engine.spark.java import find_java
from icefield.engine.spark.jvm import Jvm, start_jvm
from icefield.engine.spark.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = "lake"
MEMORY_VARIABLE = "ICEFIELD_SPARK_MEMORY"
MASTER_VARIABLE = "ICEFIELD_SPARK_MASTER"


def quoted(namespace: Sequence[str], name: str) -> str:
    """A table of the catalog, in SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in (CATALOG, *namespace, name))


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a Spark session's catalog points: the server, an address, and the token of a session address."""

    server: str
    address: str
    token: str | None = None

    def conf(self, catalog: str = CATALOG) -> dict[str, str]:
        prefix = f"spark.sql.catalog.{catalog}"
        conf = {
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.type": "rest",
            f"{prefix}.uri": self.server,
            f"{prefix}.warehouse": self.address,
            # With true a table stays as another session left it: stale reads.
            f"{prefix}.cache-enabled": "false",
            # A reporter is a thread that keeps a dropped session alive, and one more request per statement.
            f"{prefix}.rest-metrics-reporting-enabled": "false",
        }
        if self.token is not None:
            conf |= {
                f"{prefix}.rest.auth.type": "oauth2",
                f"{prefix}.token": self.token,
                f"{prefix}.token-refresh-enabled": "false",
            }
        return conf


def _memory() -> str:
    """The heap, unless somebody says: an eighth of the machine, since rows pass through it partition by partition."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return "1g"
    return f"{min(max(total >> 33, 1), 4)}g"


_LOCK = threading.Lock()
_JVM: Jvm | None = None

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.defaultCatalog": CATALOG,
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A lake on one machine: many small shuffle partitions cost more than they win (AQE splits what is large).
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key",
}


def start_spark(app: str, conf: Mapping[str, str]) -> SparkSession:
    """Starts this process's Spark with ``conf``; its root session. Raises ``EngineFailed`` if there is one already."""
    with _LOCK:
        if running_spark() is not None:
            raise EngineFailed("this process runs a Spark already")
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        wanted = _static_conf() | dict(conf)
        os.environ["PYSPARK_PYTHON"] = sys.executable  # where a user's Python functions run: the venv, its packages
        with progress("starting Spark"):
            if SparkContext._gateway is None:
                _launch_into_pyspark(wanted)
            builder = SparkSession.builder.appName(app).master(wanted.pop("spark.master"))
            for key, value in wanted.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()


def running_spark() -> SparkSession | None:
    """The root session of a Spark that runs in this process, ours or another's."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineFailed("PySpark is not installed: pip install 'icefield[spark]'") from error
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    return SparkSession._instantiatedSession or SparkSession(context)


def bound_session(binding: Binding, *, app: str, conf: Mapping[str, str] | None = None) -> tuple[SparkSession, bool]:
    """A session bound to an address, and whether it is the root of a Spark that was started for it.

    If the root session is the bound one, ``getActiveSession`` and ``getOrCreate`` give it. If this process runs a
    Spark already, a new session of that one is bound; it must have Iceberg.
    """
    root = running_spark()
    if root is None:
        return start_spark(app, binding.conf() | dict(conf or {})), True
    _check_has_iceberg(root)
    return new_session(root, binding, conf), False


def _static_conf() -> dict[str, str]:
    scratch = Path(tempfile.gettempdir()) / f"icefield-spark-{os.getuid()}"
    return _CONF | {
        "spark.master": os.environ.get(MASTER_VARIABLE, "local[*]"),
        "spark.sql.warehouse.dir": scratch.as_uri(),  # never used: no table lives outside the lake
    }


def _launch_into_pyspark(conf: Mapping[str, str]) -> None:
    """Starts the JVM and lets PySpark connect to it: it takes a running gateway from two variables."""
    global _JVM
    from pyspark import SparkContext

    java = find_java()
    jar = verified_jar(java)
    if _JVM is not None:
        _JVM.stop()
    # The token goes to the session only: a process's arguments can be read by everybody on the machine.
    public = {key: value for key, value in conf.items() if not key.startswith("spark.sql.catalog.")}
    _JVM = start_jvm(java, jars=[jar], conf=public, memory=os.environ.get(MEMORY_VARIABLE) or _memory())
    names = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    os.environ[names[0]], os.environ[names[1]] = str(_JVM.port), _JVM.secret
    try:
        SparkContext._ensure_initialized()
    finally:
        for name in names:
            del os.environ[name]


def _check_has_iceberg(session: SparkSession) -> None:
    from py4j.protocol import Py4JError

    try:
        session._jvm.java.lang.Class.forName(
            "org.apache.iceberg.spark.SparkCatalog", True, session._jvm.Thread.currentThread().getContextClassLoader()
        )
    except Py4JError:
        raise EngineFailed(
            "this process runs a Spark already, and that one has no Iceberg: stop it first (spark.stop()), "
            "or start it after icefield.connect(): lake.spark is a SparkSession like any other"
        ) from None


def new_session(root: SparkSession, binding: Binding, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session of the same Spark with a catalog of its own."""
    session = root.newSession()
    for key, value in (_session_conf() | binding.conf() | dict(conf or {})).items():
        session.conf.set(key, value)
    return session


def _session_conf() -> dict[str, str]:
    return {key: _CONF[key] for key in ("spark.sql.session.timeZone", "spark.sql.defaultCatalog")}


def close_catalog(session: SparkSession, catalog: str = CATALOG) -> None:
    """Frees the Iceberg catalog's connections and threads, which nothing in Spark does."""
    from py4j.protocol import Py4JError

    try:
        manager = session._jsparkSession.sessionState().catalogManager()
        manager.catalog(catalog).icebergCatalog().close()
    except Py4JError:
        pass  # never loaded, or the JVM is gone: nothing is left to free


def stop_spark(root: SparkSession) -> None:
    """Stops the Spark context; its JVM stays for the next one and ends with this process."""
    with _LOCK:
        root.stop()


def driver() -> Jvm | None:
    """The JVM that was started here."""
    return _JVM
