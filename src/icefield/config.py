"""Settings: what a server, a supervisor and their doors are told from outside.

One frozen value, put together from ``icefield.toml`` < ``ICEFIELD_*`` < flags. Every key that is not known is an
error that names it, because a setting that is quietly ignored is worse than none. Nothing below ``app`` reads the
environment; it is handed what it needs.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from icefield.model.errors import BadRequest
from icefield.model.names import DEFAULT_REPO, check_repo_name

FILE_NAME = "icefield.toml"
ENV_PREFIX = "ICEFIELD_"
CONFIG_VARIABLE = "ICEFIELD_CONFIG"
SERVER_VARIABLE = "ICEFIELD_SERVER"

# Read elsewhere, and so no settings of a server: where the file is, which server the CLI asks, which python ./dev
# takes, and how Spark is started.
_OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        SERVER_VARIABLE,
        "ICEFIELD_PYTHON",
        "ICEFIELD_CACHE",
        "ICEFIELD_SPARK_MEMORY",
        "ICEFIELD_SPARK_MASTER",
        "ICEFIELD_SPARK_LOG",
    }
)

_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS = ("auto", "text", "json")


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path = Path("lake-data")
    """The data folder: the store, the warehouse, logs and the lock file."""
    host: str = "127.0.0.1"
    """Address to listen on: loopback only, as there are no principals yet."""
    port: int = 8181
    """Port of the REST door; 0 picks a free one."""
    sql_port: int = 5433
    """Port of the PostgreSQL door; 0 picks a free one."""
    repo: str = DEFAULT_REPO
    """The repo that is made if it is not there, and that a bare address means."""
    lease_ms: int = 60_000
    """How long a session lives without a heartbeat."""
    max_fetched_rows: int = 5_000_000
    """How many rows one SQL statement may fetch from Spark."""
    log_level: str = "info"
    """Debug, info, warning or error."""
    log_format: str = "auto"
    """Text, json, or auto: text on a terminal, else json."""

    def __post_init__(self) -> None:
        check_host(self.host)
        _check_port("port", self.port)
        _check_port("sql_port", self.sql_port)
        if self.port and self.port == self.sql_port:
            raise BadRequest(
                f"port and sql_port are both {self.port}; give the two doors different ports", field="port"
            )
        check_repo_name(self.repo)
        if not 1_000 <= self.lease_ms <= 24 * 3_600_000:
            raise BadRequest("lease_ms must lie between 1000 (a second) and 86400000 (a day)", field="lease_ms")
        if self.max_fetched_rows < 1:
            raise BadRequest("max_fetched_rows must be at least 1", field="max_fetched_rows")
        _check_choice("log_level", self.log_level, _LOG_LEVELS)
        _check_choice("log_format", self.log_format, _LOG_FORMATS)

    @property
    def server_file(self) -> Path:
        """Written by a running server: where it listens."""
        return self.data / "server.json"


KEYS = tuple(f.name for f in fields(Settings))


def load(flags: Mapping[str, Any], environ: Mapping[str, str], *, folder: Path) -> Settings:
    """``icefield.toml`` (in ``folder``, or where ICEFIELD_CONFIG says) < ``ICEFIELD_*`` < flags that are not None."""
    named = environ.get(CONFIG_VARIABLE)
    path = Path(named) if named else folder / FILE_NAME
    values: dict[str, Any] = {}
    if named or path.is_file():
        values.update(_from_file(path))
    values.update(_from_environment(environ))
    for key, value in flags.items():
        _refuse_unknown([key], "flags")
        if value is not None:
            values[key] = _convert(key, value, f"--{key.replace('_', '-')}")
    return Settings(**values)


def check_host(host: str) -> None:
    """Without principals the server listens on loopback only, or refuses to start."""
    if host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise BadRequest(
            f"host {host!r} is not a loopback address. Whoever reaches the server may do everything, because principals"
            " and their tokens come in a later version; until then it listens on 127.0.0.1 or ::1 only."
            " From another machine, use a tunnel (ssh -L)",
            field="host",
        )


def _from_file(path: Path) -> dict[str, Any]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"cannot read the settings file {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not valid TOML: {error}", field="config") from None
    spelled = {key.replace("-", "_"): value for key, value in read.items()}
    _refuse_unknown(spelled, str(path))
    converted = {key: _convert(key, value, f"{key} in {path}") for key, value in spelled.items()}
    if "data" in converted:
        # A path in a file is meant from that file, wherever the command is typed.
        converted["data"] = path.parent / converted["data"]
    return converted


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and name not in _OTHER_VARIABLES
    }
    _refuse_unknown(found, "the environment", spell=lambda key: ENV_PREFIX + key.upper())
    return {key: _convert(key, value, ENV_PREFIX + key.upper()) for key, value in found.items()}


def _refuse_unknown(keys: Iterable[str], place: str, spell: Any = str) -> None:
    unknown = sorted(key for key in keys if key not in KEYS)
    if unknown:
        names = ", ".join(spell(key) for key in unknown)
        known = ", ".join(spell(key) for key in KEYS)
        raise BadRequest(f"unknown setting in {place}: {names}. Known are: {known}", field=unknown[0])


def _convert(key: str, value: Any, place: str) -> Any:
    wanted = type(getattr(_DEFAULTS, key))
    if issubclass(wanted, Path):
        if isinstance(value, str | Path) and str(value):
            return Path(value).expanduser()
        raise BadRequest(f"{place} must be a path, not {value!r}", field=key)
    if wanted is int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise BadRequest(f"{place} must be a whole number, not {value!r}", field=key)
        try:
            return int(value)
        except ValueError:
            raise BadRequest(f"{place} must be a whole number, not {value!r}", field=key) from None
    if not isinstance(value, str):
        raise BadRequest(f"{place} must be a text, not {value!r}", field=key)
    return value


def _check_port(key: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise BadRequest(f"{key} must lie between 0 (pick a free one) and 65535, not {port}", field=key)


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadRequest(f"{key} must be one of {', '.join(choices)}, not {value!r}", field=key)


_DEFAULTS = Settings()
