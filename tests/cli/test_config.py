"""Settings: what wins over what, and that nothing wrong is taken quietly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from icefield.config import KEYS, Settings, check_host, load
from icefield.model.errors import BadRequest


def write(folder: Path, text: str) -> Path:
    path = folder / "icefield.toml"
    path.write_text(text)
    return path


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert load({}, {}, folder=tmp_path) == Settings()


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [({}, {}, 1001), ({}, {"ICEFIELD_PORT": "1002"}, 1002), ({"port": 1003}, {"ICEFIELD_PORT": "1002"}, 1003)],
)
def test_the_file_yields_to_the_environment_and_that_to_flags(
    tmp_path: Path, flags: Mapping[str, Any], environ: Mapping[str, str], port: int
) -> None:
    write(tmp_path, 'port = 1001\nsql-port = 2001\nrepo = "shop"')
    settings = load(flags, environ, folder=tmp_path)
    assert (settings.port, settings.sql_port, settings.repo) == (port, 2001, "shop")


def test_a_flag_that_was_not_given_changes_nothing(tmp_path: Path) -> None:
    assert load({"port": None, "data": None}, {"ICEFIELD_PORT": "7"}, folder=tmp_path).port == 7


def test_a_path_in_the_file_is_meant_from_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'data = "deep/lake"')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = load({}, {"ICEFIELD_CONFIG": str(path)}, folder=elsewhere)
    assert settings.data == tmp_path / "deep" / "lake"


@pytest.mark.parametrize(
    ("flags", "environ", "text", "named"),
    [
        ({}, {}, "prot = 1", "prot"),
        ({}, {}, "[server]\nport = 1", "server"),
        ({}, {"ICEFIELD_PROT": "1"}, "", "ICEFIELD_PROT"),
        ({"prot": 1}, {}, "", "prot"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_it_and_the_known_ones(
    tmp_path: Path, flags: Mapping[str, Any], environ: Mapping[str, str], text: str, named: str
) -> None:
    write(tmp_path, text)
    with pytest.raises(BadRequest) as caught:
        load(flags, environ, folder=tmp_path)
    assert named in caught.value.message
    assert "sql_port" in caught.value.message.lower()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('port = "eighty"', "port"),
        ("port = true", "port"),
        ("port = 65536", "port"),
        ("port = 5433", "sql_port"),
        ("data = 1", "data"),
        ('repo = "no spaces"', "no spaces"),
        ('log-level = "loud"', "log_level"),
        ("lease-ms = 10", "lease_ms"),
        ("max-fetched-rows = 0", "max_fetched_rows"),
        ("port = ", "not valid TOML"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_names_its_key(tmp_path: Path, text: str, named: str) -> None:
    write(tmp_path, text)
    with pytest.raises(BadRequest) as caught:
        load({}, {}, folder=tmp_path)
    assert named in caught.value.message


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot read the settings file .*gone\.toml"):
        load({}, {"ICEFIELD_CONFIG": str(tmp_path / "gone.toml")}, folder=tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_taken(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "icefield.example", "", "127.0.0.1.example"])
def test_any_other_host_is_refused_with_the_reason(host: str) -> None:
    with pytest.raises(BadRequest, match="principals"):
        check_host(host)


def test_every_key_can_be_set_in_the_environment(tmp_path: Path) -> None:
    defaults = Settings()
    environ = {f"ICEFIELD_{key.upper()}": str(getattr(defaults, key)) for key in KEYS}
    assert load({}, environ, folder=tmp_path) == defaults
