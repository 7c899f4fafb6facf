"""Every error of the model has a SQLSTATE, and what a client needs to go on."""

from __future__ import annotations

import pytest

from icefield.model import errors as e
from icefield.model.conflicts import Conflict
from icefield.pgwire.sqlstate import SQLSTATE, to_pg_error


def _all(cls):
    return {cls}.union(*(_all(sub) for sub in cls.__subclasses__() if sub.__module__ == e.__name__))


def test_the_table_is_complete():
    assert set(SQLSTATE) == _all(e.IcefieldError)


@pytest.mark.parametrize("cls", sorted(SQLSTATE, key=lambda cls: cls.__name__))
def test_every_class_becomes_an_error_that_keeps_the_connection(cls):
    error = to_pg_error(cls("what went wrong"))
    assert (len(error.sqlstate), error.message, error.severity) == (5, "what went wrong", "ERROR")


def test_a_subclass_that_the_table_does_not_know_takes_its_parents():
    class Special(e.NoSuchTable):
        pass

    assert to_pg_error(Special("x")).sqlstate == "42P01"


def test_a_conflict_names_every_entry():
    conflicts = [Conflict("sales.a", "both-changed", "a moved"), Conflict("sales.b", "both-changed", "b moved")]
    error = to_pg_error(e.CommitConflict("two tables conflict", conflicts))
    assert (error.sqlstate, error.detail) == ("40001", "sales.a: a moved\nsales.b: b moved")
    assert "again" in error.hint
