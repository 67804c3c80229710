"""The one table, in each dialect, and the sentence for a table that is not as it should be.

The row with an empty resource carries the schema's version as its token, so that one table is
enough, and a program of another version is told so instead of failing somewhere in the middle.
"""

from __future__ import annotations

import re

from leasekeeper.lease import ConfigurationError
from leasekeeper.sql.database import DatabaseError

VERSION = 1
TABLE = "leasekeeper_lease"
DIALECTS = ("postgresql", "mysql", "sqlite")

# A resource is NAMESPACE/NAME, each at most 253 characters; a holder is name/uid/nonce/attempt.
_COLUMNS = {
    "postgresql": (
        "resource text PRIMARY KEY",
        "holder text NOT NULL",
        "token bigint NOT NULL",
        "expires timestamptz NOT NULL",
    ),
    # Binary collation: the default ones take `Orders` and `orders`, `` and ` ` for the same.
    "mysql": (
        "resource varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY",
        "holder varchar(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
        "token bigint NOT NULL",
        "expires datetime(6) NOT NULL",
    ),
    "sqlite": (
        "resource text PRIMARY KEY",
        "holder text NOT NULL",
        "token integer NOT NULL",
        "expires integer NOT NULL",
    ),
}
_MEANING = (
    "the lock; empty: the row that carries the version",
    "who has it; empty: nobody",
    "the fencing token; never goes down",
)
_EXPIRES = {
    "postgresql": "end of the lease, by this database's clock",
    "mysql": "end of the lease, by this database's clock, in UTC",
    "sqlite": "end of the lease, in milliseconds since 1970",
}
_EPOCH = {"postgresql": "'epoch'", "mysql": "'1970-01-01'", "sqlite": "0"}


def schema(dialect: str, table: str = TABLE) -> str:
    """The statements that make the table, for a migration or for a person to run."""
    if dialect not in DIALECTS:
        raise ConfigurationError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
    checked(table)
    columns = list(_COLUMNS[dialect])
    comments = (*_MEANING, _EXPIRES[dialect])
    lines = [
        f"  {column}{',' if column != columns[-1] else ''} -- {comment}"
        for column, comment in zip(columns, comments, strict=True)
    ]
    engine = " ENGINE=InnoDB" if dialect == "mysql" else ""
    values = f"('', 'schema version', {VERSION}, {_EPOCH[dialect]})"
    return "\n".join(
        [
            f"CREATE TABLE {table} (",
            *lines,
            f"){engine};",
            f"INSERT INTO {table} (resource, holder, token, expires) VALUES {values};",
            "",
        ]
    )


def checked(table: str) -> str:
    """The table's name goes into the statements as it is: only what needs no quoting may."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?", table):
        raise ConfigurationError(
            f"{table!r} cannot be the table's name: small letters, digits and _, at most 63, with"
            " the schema and a dot before it if need be"
        )
    return table


def check_version(found: int | None, dialect: str, table: str) -> None:
    if found == VERSION:
        return
    said = "no version" if found is None else f"version {found}"
    raise DatabaseError(
        f"the table {table} has {said}, and this program knows version {VERSION}: run the"
        f" migration of the release that you use, see `leasekeeper sql-schema {dialect}`"
    )


def no_table(dialect: str, table: str) -> str:
    return (
        f"there is no table {table}: make it with what `leasekeeper sql-schema {dialect}` prints,"
        " as the user who owns the database"
    )


def no_right(user: str, table: str) -> str:
    return (
        f"user {user} may not use the table {table}: grant SELECT, INSERT and UPDATE on it"
        " (nothing else is needed)"
    )
