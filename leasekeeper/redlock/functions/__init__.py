"""The node functions: Lua libraries in files of their own. `admin` is loaded at first sight, `vote`
when a node opens.
"""

from __future__ import annotations

from importlib import resources

ADMIN = "lk1_admin"
VOTE = "lk1_vote"


def library(name: str) -> str:
    """The source of the library `name`, as FUNCTION LOAD takes it."""
    files = resources.files(__name__)
    common = (files / "common.lua").read_text()
    own = (files / f"{name.removeprefix('lk1_')}.lua").read_text()
    return f"#!lua name={name}\n{common}\n{own}"
