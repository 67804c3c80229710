"""The lease in a table of a SQL database: PostgreSQL, MySQL or MariaDB, SQLite.

One row a lock: who holds it, with which token, until when on the database's own clock. Every step
is one statement, so the database's row lock is the only one there is. What each database promises,
and what none can: `docs/stores.md`.
"""
