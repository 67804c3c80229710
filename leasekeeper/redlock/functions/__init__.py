"""The node functions: Lua libraries in files of their own. `admin` is loaded at first sight, `vote`
when a node opens.
"""

from __future__ import annotations

from importlib import resources

ADMIN = "lk1_admin"
VOTE = "lk1_vote"
_FILES = {ADMIN: ("common", "admin", "change"), VOTE: ("common", "vote")}


def library(name: str) -> str:
    """The source of the library `name`, as FUNCTION LOAD takes it."""
    folder = resources.files(__name__)
    texts = [(folder / f"{file}.lua").read_text() for file in _FILES[name]]
    return "\n".join([f"#!lua name={name}", *texts])
