"""One concept, one word: the code uses DESIGN.md's words and not their rivals. Names only; prose may quote others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "icefield"

# rival: the word. Matched against whole words of the names that our own code gives (classes, functions, parameters).
RIVALS = {
    "bucket": "volume (a bucket is a partition transform, or inside volume)",
    "checkpoint": "savepoint",
    "dao": "store",
    "executor": "engine",
    "mutex": "lock, or ticket for a writer's place in line",
    "repository": "repo for the unit of versioning, store for the database",
    "staging": "overlay",
    "trash": "deletion queue",
    "workspace": "overlay",
    "util": "a name that says what it does",
    "utils": "a name that says what it does",
    "helper": "a name that says what it does",
    "helpers": "a name that says what it does",
    "misc": "a name that says what it does",
}
# The words of the format and of other programs, where they are meant.
ALLOWED = {
    ("iceberg", "bucket"),  # a partition transform
    ("sql", "bucket"),
    ("engine", "bucket"),
    ("pgwire", "executor"),  # concurrent.futures
    ("sql", "executor"),
    ("engine", "executor"),  # Spark's own
    ("rest", "executor"),
}


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def words(name: str) -> set[str]:
    spaced = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return set(spaced.split("_"))


def test_names_use_the_words_of_the_design() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        tree = ast.parse(path.read_text(), filename=str(path))
        for name in [path.stem, *names(tree)]:
            for word in sorted(words(name) & RIVALS.keys()):
                if (inside.parts[0], word) not in ALLOWED:
                    found.append(f"{inside}: {name}: say {RIVALS[word]}")
    assert found == []


def test_the_check_sees_what_it_looks_for() -> None:
    tree = ast.parse("class TableRepository:\n    def on_checkpoint(self, the_mutex): ...")
    seen = set().union(*(words(name) for name in names(tree)))
    assert {"repository", "checkpoint", "mutex"} <= seen
