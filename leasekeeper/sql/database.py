"""What the store asks of a database; each dialect answers in its own SQL and with its own driver.

Every step is one statement in a transaction of its own. Time is the database's clock at the
*start* of the statement: a statement that had to wait for the row then judges by a time that is
too early, which is late for whoever wants the lock and safe for whoever has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from leasekeeper.lease import LeaseError

EVER = 1e12
"""Unix seconds, some thirty thousand years: no bound."""


LONGEST_WORDS = 200  # of what a server says; whoever answers there may be no database at all
LONGEST_TOKEN = 19  # digits of a bigint


class DatabaseError(LeaseError):
    """One sentence: what the database refused or failed to do, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The row of a lock as a statement left it, and the database's time at its start."""

    now: float
    holder: str = ""
    """Nobody: empty."""
    token: int = 0
    left: float = 0.0
    """Seconds until the lease ends, by the database's clock; negative: it has ended."""
    exists: bool = False
    done: bool = False
    """The statement changed the row as it was asked to."""

    @property
    def held(self) -> bool:
        return bool(self.holder) and self.left > 0


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt to take a lock: inserts its row, or takes over one that is free or has expired.

    Nothing is taken if the row's token is below `seen`. A row that has expired is taken only if the
    database's time is between `earliest` and `latest`: else its clock was set, and says nothing.
    """

    resource: str
    id: str
    ttl: float
    seen: int = 0
    mine: str = ""
    """An own earlier attempt without an answer, which may stand in the row; none: empty."""
    earliest: float = -EVER
    latest: float = EVER


def as_token(text: str) -> int | None:
    """Of a notification; none: that is no token. 5,000 digits are no number for Python."""
    plain = text.isascii() and text.isdigit() and len(text) <= LONGEST_TOKEN
    return int(text) if plain else None


def in_one_line(wrong: BaseException) -> str:
    """What somebody else's error says: without its line breaks, and what is no text at all."""
    said = " ".join(str(wrong).split()) or type(wrong).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in said)[:LONGEST_WORDS]


class Database(Protocol):
    """One connection to a database, made by `open`. Whatever goes wrong is a DatabaseError."""

    notifies: bool
    """Whether `on_freed` is called when a lock is given back. If not, waiters look."""

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None:
        """Connects, checks the schema's version, and listens. `on_freed` gets the token of the
        lease that was given back, or none if the connection ended: nothing will be heard then.
        """

    async def take(self, claim: Claim) -> Look: ...

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        """Moves the end of a lease on, if it is still this one."""

    async def give_back(self, resource: str, id: str) -> bool:
        """Frees the row and keeps its token. False: it was not this id's."""

    async def look(self, resource: str) -> Look: ...

    def drop(self) -> None:
        """Ends the connection now. A statement under way may still be run by the database."""

    async def close(self) -> None: ...
