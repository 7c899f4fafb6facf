"""One running ``icefield up`` for the whole folder, and the clients that people have, unmodified."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.spark_client import SparkClient
from support.up import Up

DUCKDB_EXTENSIONS = ("avro", "httpfs", "iceberg")


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up") / "lake").start()
    http = running.http()
    assert http.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    assert http.post("/api/v1/repos/lake/branches", {"name": "dev"}).status == 200
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark(up: Up) -> Iterator[SparkClient]:
    client = SparkClient(up.url, {"lake": "lake", "dev": "lake@dev"})
    yield client
    client.close()


@pytest.fixture(scope="session")
def duck(up: Up) -> Iterator[Any]:
    import duckdb

    packages = Path(sysconfig.get_paths()["purelib"])
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in DUCKDB_EXTENSIONS:
        folder = packages / f"duckdb_extension_{name}" / "extensions"
        (extension,) = folder.glob(f"v*/{name}.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    for name, address in (("lake", "lake"), ("dev", "lake@dev")):
        connection.execute(
            f"ATTACH '{address}' AS {name} (TYPE iceberg, ENDPOINT '{up.url}', AUTHORIZATION_TYPE 'none')"
        )
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def pyiceberg(up: Up) -> dict[str, Any]:
    from pyiceberg.catalog import load_catalog

    return {
        name: load_catalog(name, type="rest", uri=up.url, warehouse=address)
        for name, address in (("lake", "lake"), ("dev", "lake@dev"))
    }


@pytest.fixture
def in_threads() -> Any:
    """Runs callables at the same time; the first failure is the test's."""

    def run(*works: Any) -> None:
        failures: list[BaseException] = []

        def guarded(work: Any) -> None:
            try:
                work()
            except BaseException as error:  # handed to the test
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
            assert not thread.is_alive()
        if failures:
            raise failures[0]

    return run
