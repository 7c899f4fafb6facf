"""PostgreSQL clusters, cheap to make and gone with their owner.

    template = BrainTemplate()                       # initdb once per version, kept in a cache folder
    with Cluster.clone(template) as cluster:         # copied (0.04 s), started (0.1 s); stopped and removed at the end
        BrainLink.open(cluster.socket_dir, user=cluster.superuser, password=cluster.superuser_password, …)

What holds, always:
- A cluster is a cache. Nothing is synced to disk, and it is removed with its owner: by ``remove``, or, when the owner
  was killed, by the next ``clone`` or ``sweep`` below the same root. An owner is known by a lock that it holds.
- Its server dies with its owner: on Linux at once (parent-death signal), elsewhere when it is swept.
- Connections come through a unix socket in a 0700 folder, and everybody needs a password (SCRAM).
- PostgreSQL never runs as root. Started by root, it runs as the account ``nobody``, which must be able to read the
  programs and reach the folders: so clusters live below the system's temporary folder, and programs below a private
  home are copied there, once.

``root`` is the folder for all of this, ``<tmp>/icefield-<uid>`` by default. ``clone``, ``start``, ``stop`` and
``remove`` block; ``aclone``, ``astart``, ``astop`` and ``aremove`` are the same for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import hashlib
import os
import pwd
import queue
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from icefield.model.errors import NotSupported, Unavailable
from icefield.sql.brain.binaries import Binaries, find_binaries

SUPERUSER = "icefield"
PORT = 5432
"""Only a part of the socket's name: nothing listens on TCP."""
SOCKET_PATH_LIMIT = 107

_UNPRIVILEGED = "nobody"
_TEMPLATE_FORMAT = 2
"""Counted up when templates are made differently, so that older ones are not taken."""
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 3.0
"""PostgreSQL 18 never ends when it is asked to stop in the middle of a crash recovery (its checkpointer stays)."""

SETTINGS: Mapping[str, str] = {
    # A cache: what is lost when the machine crashes is made again. What was committed survives a killed server.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Small: 5 processes, 6 MB.
    "shared_buffers": "16MB",
    "max_connections": "100",
    "autovacuum": "off",
    "io_method": "sync",
    "jit": "off",
    # Reached by nobody but us.
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    "scram_iterations": "1",  # passwords are random tokens: nothing is gained by making each login slow
    # Statements are the clients' data: they stay out of the log.
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
    "logging_collector": "off",
    # The same on every machine.
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}


# Folders and accounts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Account:
    """Who PostgreSQL runs as: we ourselves, or somebody unprivileged if we are root."""

    uid: int
    gid: int
    dropped: bool

    def popen_args(self) -> dict[str, object]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.dropped else {}

    def own(self, path: Path) -> None:
        if self.dropped:
            os.chown(path, self.uid, self.gid)


def _account() -> _Account:
    if os.geteuid() != 0:
        return _Account(os.geteuid(), os.getegid(), dropped=False)
    try:
        entry = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        raise NotSupported(
            f"PostgreSQL does not run as root, and there is no account {_UNPRIVILEGED!r} to run it instead: "
            "start icefield as another user"
        ) from None
    return _Account(entry.pw_uid, entry.pw_gid, dropped=True)


def default_root() -> Path:
    """Below the system's temporary folder; short enough for sockets."""
    name = f"icefield-{os.geteuid()}"
    root = Path(tempfile.gettempdir()) / name
    return root if _fits(root) else Path("/tmp") / name  # noqa: S108 (ownership is checked by _private_folder)


def _fits(root: Path) -> bool:
    return len(os.fsencode(root / "c-12345678" / "s" / f".s.PGSQL.{PORT}.lock")) <= SOCKET_PATH_LIMIT


def _private_folder(path: Path, mode: int) -> None:
    """Make a folder that is ours, or make sure that the one that is there is: others can write where it stands."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise NotSupported(
            f"{path} is not a folder of ours (or others may write to it): remove it, or choose another place"
        )
    path.chmod(mode)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _FolderLock:
    """A lock on a folder, held until ``close`` or the end of the process; it is not inherited by children.

    It is on the folder itself so that systemd-tmpfiles, which honours such locks, lets the folder be.
    """

    def __init__(self, folder: Path, how: int) -> None:
        """BlockingIOError if it is held by somebody else and ``how`` has LOCK_NB."""
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._fd, how)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_root(root: Path | None, account: _Account) -> Path:
    path = (root or default_root()).absolute()
    if not _fits(path):
        raise NotSupported(
            f"{path} is too long for unix sockets ({SOCKET_PATH_LIMIT} bytes with their name): choose a shorter folder"
        )
    # Somebody we drop to must pass through, not look around.
    _private_folder(path, 0o711 if account.dropped else 0o700)
    return path


# Programs -----------------------------------------------------------------------------------------------------------


def _run(account: _Account, *command: object, **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(part) for part in command],
        capture_output=True,
        cwd="/",
        env=_environment(),
        stdin=subprocess.DEVNULL,
        timeout=300,
        **account.popen_args(),
        **kwargs,
    )


def _environment() -> dict[str, str]:
    """Nothing of ours: PG… variables and passwords do not belong in there, and C.UTF-8 is everywhere."""
    return {"PATH": "/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}


def _runs_as(account: _Account, binaries: Binaries) -> bool:
    try:
        return _run(account, binaries.program("postgres"), "--version").returncode == 0
    except OSError:
        return False


def _usable_binaries(binaries: Binaries, root: Path, account: _Account) -> Binaries:
    """The programs as the account can run them: as installed, or a copy that it can read."""
    if not account.dropped or _runs_as(account, binaries):
        return binaries
    copy = root / f"programs-{binaries.build}"
    with _locked(root / ".programs.lock"):
        done = copy / "complete"
        if not done.exists():
            shutil.rmtree(copy, ignore_errors=True)
            for folder in (binaries.home / "pginstall", binaries.home.with_name(binaries.home.name + ".libs")):
                if folder.is_dir():
                    where = copy / folder.relative_to(binaries.home.parent)
                    shutil.copytree(
                        folder, where, symlinks=True, ignore=shutil.ignore_patterns("include", "doc", "*.a")
                    )
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            done.touch()
    copied = Binaries(copy / binaries.bin.relative_to(binaries.home.parent), binaries.version, binaries.build)
    if not _runs_as(account, copied):
        raise NotSupported(
            f"icefield was started by root, so PostgreSQL runs as {_UNPRIVILEGED!r}, who can read neither "
            f"{binaries.bin} nor the copy {copied.bin}: install where all users can read, "
            "or start icefield as another user"
        )
    return copied


# Starting servers ---------------------------------------------------------------------------------------------------


class _Launcher:
    """One thread that starts every server and lives as long as the process.

    A parent-death signal is sent when the *thread* that started the child ends, and threads of a pool may end early.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._jobs = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pid: int | None = None

    def __call__(self, job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pid != os.getpid():  # first use, or first use after a fork, which does not take threads along
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._jobs,), name="brain-launcher", daemon=True).start()
                self._pid = os.getpid()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((job, future))
        return future.result()

    @staticmethod
    def _run(
        jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]],
    ) -> None:
        while True:
            job, future = jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)


_launch = _Launcher()


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does last before it becomes PostgreSQL: by then its user is set, which would clear the signal."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_death_signal, number = 1, int(signal.SIGQUIT)

    def ask() -> None:
        prctl(set_death_signal, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


# Template and cluster -----------------------------------------------------------------------------------------------


class BrainTemplate:
    """A stopped cluster of this version, made once below ``root`` and copied from then on."""

    def __init__(self, root: Path | None = None, *, binaries: Binaries | None = None) -> None:
        self._account = _account()
        self.root = _open_root(root, self._account)
        self.binaries = _usable_binaries(binaries or find_binaries(), self.root, self._account)
        self._made: Path | None = None
        self._lock: _FolderLock | None = None

    def make(self) -> Path:
        """The template's folder: ``data`` and, readable by us alone, ``password``."""
        if self._made is not None:
            return self._made
        digest = hashlib.sha256(repr((_TEMPLATE_FORMAT, sorted(SETTINGS.items()))).encode()).hexdigest()[:10]
        folder = self.root / f"template-{self.binaries.build}-{digest}"
        with _locked(self.root / ".template.lock"):
            if not _complete(folder):
                self._build(folder)
            self._lock = _FolderLock(folder, fcntl.LOCK_SH)
        self._made = folder
        return folder

    def _build(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        _private_folder(folder, 0o711 if self._account.dropped else 0o700)
        data, password_file = folder / "data", folder / "initial-password"
        data.mkdir(mode=0o700)
        self._account.own(data)
        password = secrets.token_urlsafe(24)
        _write_private(password_file, password)
        self._account.own(password_file)
        result = _run(
            self._account,
            *(self.binaries.program("initdb"), "-D", data, "-U", SUPERUSER, f"--pwfile={password_file}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *("--no-data-checksums", "--no-sync", "--no-instructions", "--wal-segsize=4"),
            *(part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")),
            *("-c", f"dynamic_shared_memory_type={_shared_memory_type()}"),
        )
        password_file.unlink()
        if result.returncode != 0:
            said = (result.stderr or result.stdout).decode(errors="replace").strip()
            shutil.rmtree(folder, ignore_errors=True)
            raise Unavailable(f"the embedded PostgreSQL could not be set up below {folder}: {said}")
        hba = data / "pg_hba.conf"
        hba.write_text("local all all scram-sha-256\n")
        self._account.own(hba)
        _write_private(folder / "password", password)
        _write_private(folder / "complete", str(_count_files(data)))


def _complete(folder: Path) -> bool:
    """Made to its end, and not thinned out since by whoever cleans up temporary folders."""
    try:
        return (
            int((folder / "complete").read_text()) == _count_files(folder / "data") and (folder / "password").exists()
        )
    except (OSError, ValueError):
        return False


def _count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def _shared_memory_type() -> str:
    """Containers may have a tiny /dev/shm; files in the data folder always work."""
    try:
        free = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return "mmap" if sys.platform == "linux" else "posix"
    return "posix" if free.f_bavail * free.f_frsize >= 256 << 20 else "mmap"


def _write_private(path: Path, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(content)


class Cluster:
    """One PostgreSQL of our own. Owned by this process until ``remove``."""

    def __init__(self, folder: Path, template: BrainTemplate, password: str, owner: _FolderLock) -> None:
        """Use ``clone``."""
        self.folder = folder
        self.data = folder / "data"
        self.socket_dir = folder / "s"
        self.port = PORT
        self.superuser = SUPERUSER
        self.superuser_password = password
        self._template = template
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @classmethod
    def clone(cls, template: BrainTemplate, *, settings: Mapping[str, str] | None = None) -> Cluster:
        """A copy of the template, not started. ``settings`` go over ``SETTINGS``."""
        source = template.make()
        account = template._account
        with _locked(template.root / ".clusters.lock"):
            _sweep(template.root)
            folder = Path(tempfile.mkdtemp(prefix="c-", dir=template.root))
            folder.chmod(0o711 if account.dropped else 0o700)
            owner = _FolderLock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        cluster = cls(folder, template, (source / "password").read_text(), owner)
        try:
            account.own(folder)
            result = _run(account, "cp", "-Rp", source / "data", cluster.data)
            cluster.socket_dir.mkdir(mode=0o700)
            account.own(cluster.socket_dir)
            os.chown(folder, os.geteuid(), os.getegid())
            if result.returncode != 0:
                said = result.stderr.decode(errors="replace").strip()
                raise Unavailable(f"the embedded PostgreSQL could not be copied to {folder}: {said}")
            if settings:
                with (cluster.data / "postgresql.auto.conf").open("a") as file:
                    file.writelines(f"{name} = {_quote(value)}\n" for name, value in settings.items())
        except BaseException:
            cluster.remove()
            raise
        return cluster

    # running --------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server and wait until it takes connections. May be called again, also after a crash."""
        with self._lock:
            if self.alive:
                return
            self._clear_leftovers()
            self._process = _launch(self._spawn)
            self._await_ready(self._process, timeout_s)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the server: clients are cut off at once. The data stays until ``remove``.

        Asked nicely, then firmly after ``timeout_s``, then killed.
        """
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout_s)

    def remove(self) -> None:
        """Stop it and delete its folder. The cluster is of no use afterwards."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.close()

    def log_tail(self, limit: int = 4000) -> str:
        """The end of what the server wrote to its log."""
        try:
            return (self.folder / "log").read_bytes()[-limit:].decode(errors="replace")
        except OSError:
            return ""

    @classmethod
    async def aclone(cls, template: BrainTemplate, *, settings: Mapping[str, str] | None = None) -> Cluster:
        return await asyncio.to_thread(cls.clone, template, settings=settings)

    async def astart(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        await asyncio.to_thread(self.start, timeout_s)

    async def astop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        await asyncio.to_thread(self.stop, timeout_s)

    async def aremove(self) -> None:
        await asyncio.to_thread(self.remove)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.remove()

    # inside ---------------------------------------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
                [self._template.binaries.program("postgres"), "-D", self.data, "-k", self.socket_dir, "-p", str(PORT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # a Ctrl-C at our terminal is ours to turn into an orderly end
                preexec_fn=_die_with_parent(),
                **self._template._account.popen_args(),
            )

    def _await_ready(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._process = None
                raise Unavailable(f"the embedded PostgreSQL did not start: {self.log_tail().strip()}")
            if _says_ready(self.data / "postmaster.pid", process.pid) and self._accepts():
                return
            time.sleep(0.005)
        process.kill()
        process.wait()
        self._process = None
        raise Unavailable(f"the embedded PostgreSQL was not ready within {timeout_s:.0f} s: {self.log_tail().strip()}")

    def _accepts(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket_dir / f".s.PGSQL.{PORT}"))
            except OSError:
                return False
        return True

    def _clear_leftovers(self) -> None:
        """After a kill: backends that still run die first, then what they left goes."""
        if self._process is not None:
            self._process.wait()
        _kill_servers(self.data)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for path in self.socket_dir.iterdir():
            path.unlink(missing_ok=True)


def _says_ready(pid_file: Path, pid: int) -> bool:
    try:
        lines = pid_file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


# Sweeping -----------------------------------------------------------------------------------------------------------


def sweep(root: Path | None = None) -> list[Path]:
    """Remove the clusters below ``root`` whose owners are dead. Returns what was removed."""
    path = _open_root(root, _account())
    with _locked(path / ".clusters.lock"):
        return _sweep(path)


def _sweep(root: Path) -> list[Path]:
    removed = []
    for folder in root.glob("c-*"):
        try:
            lock = _FolderLock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives (or it has just been removed)
        try:
            _kill_servers(folder / "data")
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
        finally:
            lock.close()
    return removed


def _kill_servers(data: Path) -> None:
    """End every process of a cluster whose owner is gone. They are known by their working folder, the data folder."""
    if sys.platform != "linux":
        _kill_postmaster(data)
        return
    deadline = time.monotonic() + 10
    while pids := [pid for pid in map(_pid_of, Path("/proc").iterdir()) if pid and _works_in(pid, data)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"processes {pids} of the embedded PostgreSQL in {data} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _pid_of(entry: Path) -> int | None:
    return int(entry.name) if entry.name.isdigit() else None


def _works_in(pid: int, data: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data
    except OSError:
        return False


def _kill_postmaster(data: Path) -> None:
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
    except (OSError, ValueError, IndexError):
        return
