"""What the bank must hold by what its writers were told: acknowledged, refused, or in doubt; and the laws over it.

Every change keeps the sum of all balances. Every move counts up ``moves`` of its two accounts, so that a change that
was acknowledged and is lost, or that landed twice, shows at its accounts, whatever hid it in the balances.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Move:
    source: int
    target: int
    amount: int


@dataclass
class _Account:
    balance: int
    moves: int = 0
    doubtful_moves: int = 0
    may_be_missing: bool = False
    """Opening or closing it is in doubt."""


Row = tuple[int, int, int]
"""id, balance, moves"""


@dataclass
class Seen:
    """What a reader sums up."""

    total: int
    accounts: int
    different: int
    moves: int


@dataclass
class Books:
    total: int = 0
    problems: list[str] = field(default_factory=list)
    _accounts: dict[int, _Account] = field(default_factory=dict)
    _movable: list[int] = field(default_factory=list)
    _pairs: list[tuple[int, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # what happened --------------------------------------------------------------------------------------------------

    def opened(self, number: int, balance: int = 0, *, doubtful: bool = False) -> None:
        with self._lock:
            self._accounts[number] = _Account(balance, may_be_missing=doubtful)
            self.total += balance
            if not doubtful:
                self._movable.append(number)

    def opened_pair(self, one: int, other: int, amount: int, *, doubtful: bool = False) -> None:
        """Two accounts whose balances cancel out. No money moves there; they may be closed, together."""
        with self._lock:
            self._accounts[one] = _Account(amount, may_be_missing=doubtful)
            self._accounts[other] = _Account(-amount, may_be_missing=doubtful)
            if not doubtful:
                self._pairs.append((one, other))

    def take_pair(self) -> tuple[int, int] | None:
        """One to close; nobody else will."""
        with self._lock:
            return self._pairs.pop(0) if self._pairs else None

    def keep_pair(self, pair: tuple[int, int]) -> None:
        with self._lock:
            self._pairs.append(pair)

    def closed(self, numbers: Iterable[int], *, doubtful: bool = False) -> None:
        with self._lock:
            for number in numbers:
                if doubtful:
                    self._accounts[number].may_be_missing = True
                else:
                    del self._accounts[number]

    def moved(self, *moves: Move, doubtful: bool = False) -> None:
        with self._lock:
            for move in moves:
                for number, amount in ((move.source, -move.amount), (move.target, move.amount)):
                    account = self._accounts[number]
                    if doubtful:
                        account.doubtful_moves += 1
                    else:
                        account.moves += 1
                        account.balance += amount

    def found(self, problem: str) -> None:
        with self._lock:
            self.problems.append(problem)

    # what is asked --------------------------------------------------------------------------------------------------

    @property
    def movable(self) -> list[int]:
        with self._lock:
            return list(self._movable)

    @property
    def acknowledged_moves(self) -> int:
        """The sum of ``moves`` over all accounts that nobody who reads from now on may see less of."""
        with self._lock:
            return sum(account.moves for account in self._accounts.values())

    def looked(self, who: str, before: int, seen: Seen) -> None:
        """A reader who began when ``before`` moves were acknowledged saw this, while others wrote."""
        if seen.total != self.total:
            self.found(f"{who} saw a sum of {seen.total}, which is always {self.total}")
        if seen.accounts != seen.different:
            self.found(f"{who} saw {seen.accounts} rows of {seen.different} accounts")
        if seen.moves < before:
            self.found(f"{who} saw {seen.moves} moves, though {before} were acknowledged before it began")

    def compare(self, who: str, rows: Iterable[Row]) -> list[str]:
        """Everything, when nobody writes any more."""
        rows = list(rows)
        problems = []
        times = Counter(number for number, _, _ in rows)
        for number, count in times.items():
            if count > 1:
                problems.append(f"{who}: account {number} is there {count} times")
        total = sum(balance for _, balance, _ in rows)
        if total != self.total:
            problems.append(f"{who}: the sum is {total}, not {self.total}")
        problems += [f"{who}: account {number} was never opened" for number in times.keys() - self._accounts.keys()]
        for number, account in sorted(self._accounts.items()):
            if number not in times and not account.may_be_missing:
                problems.append(f"{who}: account {number} is missing")
        for number, balance, moves in sorted(rows):
            known = self._accounts.get(number)
            if known is not None:
                problems += self._compare_one(who, number, known, balance, moves)
        return problems

    @staticmethod
    def _compare_one(who: str, number: int, account: _Account, balance: int, moves: int) -> list[str]:
        most = account.moves + account.doubtful_moves
        if moves < account.moves:
            return [f"{who}: account {number} has {moves} moves of {account.moves} that were acknowledged: lost"]
        if moves > most:
            return [f"{who}: account {number} has {moves} moves, though only {most} were asked for and not refused"]
        if not account.doubtful_moves and balance != account.balance:
            return [f"{who}: account {number} has {balance}, not {account.balance}"]
        return []
