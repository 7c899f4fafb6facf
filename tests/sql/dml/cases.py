"""A case: statements that both sides get one after the other, each answer and the tables afterwards compared."""

from __future__ import annotations

from dataclasses import dataclass

from dml.asking import Statement


@dataclass(frozen=True)
class Case:
    statements: tuple[Statement, ...]
    alone: bool = False
    """Begins and ends transactions itself (or says what is refused within one): never inside one of the runner's."""
    plans: bool = False
    """Its rows tell how it was done (EXPLAIN): they are not compared."""

    many: bool = False
    """A text holds several statements: that is for the simple protocol alone."""

    def __str__(self) -> str:
        return ";\n".join(s if isinstance(s, str) else s.statement for s in self.statements)

    @property
    def single(self) -> bool:
        return not self.many and len(self.statements) == 1 and isinstance(self.statements[0], str)


def case(*statements: Statement, alone: bool = False, plans: bool = False, many: bool = False) -> Case:
    return Case(statements, alone, plans, many)
