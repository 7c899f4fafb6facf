"""Iceberg's runtime for Spark: fetched once by coordinates through Spark's own package resolution, pinned by digest.

The resolver runs in a JVM of its own that holds Spark's jars and nothing else, so the digest is checked before any
Spark loads the file; the verified jar is then on the class path of the driver that is started afterwards. It is checked
again at every start. A mirror is used by Spark's own means: ``DEFAULT_ARTIFACT_REPOSITORY``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from icefield.engine.port import EngineFailed
from icefield.engine.spark.java import Java
from icefield.engine.spark.jvm import connect_gateway, start_jvm
from icefield.engine.spark.progress import progress


@dataclass(frozen=True, slots=True)
class Artifact:
    group: str
    name: str
    version: str
    sha256: str
    megabytes: int

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.group}_{self.name}-{self.version}.jar"


ICEBERG_RUNTIME = Artifact(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    48,
)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    own = env.get("ICEFIELD_CACHE")
    if own:
        return Path(own)
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "icefield"


def verified_jar(java: Java, artifact: Artifact = ICEBERG_RUNTIME, cache: Path | None = None) -> Path:
    """The jar in the cache, fetched if it is not there; its digest holds. Raises ``EngineFailed``."""
    folder = (cache or cache_folder()) / "ivy"
    jar = folder / "jars" / artifact.file_name
    if digest(jar) == artifact.sha256:
        return jar
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(folder / "lock"):
        if digest(jar) == artifact.sha256:  # another process fetched it while we waited
            return jar
        jar.unlink(missing_ok=True)  # half a download or another's file: never to be loaded
        with progress(f"fetching Iceberg's runtime for Spark ({artifact.megabytes} MB, once)"):
            _fetch(java, artifact, folder, jar)
    return jar


def digest(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _fetch(java: Java, artifact: Artifact, folder: Path, jar: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="resolve-", dir=folder))
    try:
        fetched = _resolve(java, artifact, scratch)
        found = digest(fetched)
        if found != artifact.sha256:
            raise EngineFailed(
                f"{artifact.coordinates} as fetched is not the file that this version of icefield was made for: its "
                f"sha256 is {found}, expected {artifact.sha256}. It was not loaded and is thrown away"
            )
        jar.parent.mkdir(exist_ok=True)
        fetched.rename(jar)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _resolve(java: Java, artifact: Artifact, folder: Path) -> Path:
    from py4j.protocol import Py4JError, Py4JJavaError

    jvm = start_jvm(java, memory="256m", quiet=True)
    try:
        gateway = connect_gateway(jvm)
        try:
            scala = gateway.jvm.scala
            maven = gateway.jvm.org.apache.spark.util.MavenUtils
            says = gateway.jvm.java.lang.System.err
            none = scala.Option.empty()
            settings = maven.buildIvySettings(none, scala.Option.apply(str(folder)), False, says)
            no_exclusions = getattr(maven, "resolveMavenCoordinates$default$5")()
            files = maven.resolveMavenCoordinates(
                artifact.coordinates, settings, none, False, no_exclusions, False, says
            )
            return Path(str(files.head()))
        except Py4JJavaError as error:
            raise EngineFailed(
                f"{artifact.coordinates} could not be fetched: {error.java_exception.getMessage()}. The first start "
                "needs a connection to a Maven repository (a mirror: set DEFAULT_ARTIFACT_REPOSITORY); or put the "
                f"file at {folder.parent / 'jars' / artifact.file_name}"
            ) from None
        except Py4JError as error:
            raise EngineFailed(f"{artifact.coordinates} could not be fetched: {error}") from error
        finally:
            with suppress(Exception):
                gateway.shutdown()
    finally:
        jvm.stop()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time fetches; the system drops the lock when its holder dies."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
