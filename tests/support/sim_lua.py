"""The memories of many nodes in one interpreter: the emulation and the functions of `lua_node`, but
loaded once, with the data of one node after the other put in their place.

Loading a library takes longer than a hundred calls of its functions, and a simulation has thousands
of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import lua_node
from lupa import lua51

from leasekeeper.redlock import functions

_CALL = """
function(machine, data, name, key, ...)
  local callback = machine.callbacks[name]
  if not callback then return false end
  machine.data = data
  return unpack(callback({ key or nil }, { ... }))
end
"""


class Machine:
    """Both libraries, from these sources."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.node: Any = lua_node._new()
        self.library_of: dict[str, str] = {}
        for library in (functions.ADMIN, functions.VOTE):
            self.node.load(library, sources[library].split("\n", 1)[1])
            for name in self.node.libraries[library].values():
                self.library_of[name] = library
        self.listeners: Callable[[str], int] = lambda _: 0
        """Of the server whose turn it is. Lua is given a function once: that is dear."""
        self.node.listeners = lambda topic: self.listeners(topic)
        self.call: Any = lua_node._lua.eval(_CALL)
        self.new_data: Any = lua_node._lua.eval("function() return {} end")
        self.flush: Any = lua_node._lua.eval(
            "function(data) for key in pairs(data) do data[key] = nil end end"
        )
        self.get: Any = lua_node._lua.eval(
            "function(data, key, field) return (data[key] or {})[field] end"
        )
        self.put: Any = lua_node._lua.eval(
            "function(data, key, field, value)"
            " data[key] = data[key] or {}; data[key][field] = value end"
        )


@lru_cache(maxsize=2)
def _machine(admin: str, vote: str) -> Machine:
    return Machine({functions.ADMIN: admin, functions.VOTE: vote})


_read = functions.library  # the simulation puts `library` in its place


@lru_cache(maxsize=4)
def library(name: str) -> str:
    return _read(name)


def machine(sources: Mapping[str, str]) -> Machine:
    """`sources` replaces the source of a library: that is how a protection is taken away."""
    return _machine(
        sources.get(functions.ADMIN) or library(functions.ADMIN),
        sources.get(functions.VOTE) or library(functions.VOTE),
    )


class Memory:
    """What one server process has in its memory: data, and which libraries are loaded."""

    def __init__(self, machine: Machine, listeners: Callable[[str], int]) -> None:
        self._machine = machine
        self._listeners = listeners
        self._data = machine.new_data()
        self._loaded: set[str] = set()

    def load(self, library: str) -> None:
        self._loaded.add(library)

    def delete(self, library: str) -> None:
        self._loaded.discard(library)

    def loaded(self, library: str) -> bool:
        return library in self._loaded

    def fcall(self, name: str, key: str | None, *args: str) -> tuple[str, ...] | None:
        """None: function not found."""
        library = self._machine.library_of.get(name)
        if library is None or library not in self._loaded:
            return None
        machine = self._machine
        machine.listeners = self._listeners
        try:
            reply: tuple[str, ...] = machine.call(machine.node, self._data, name, key, *args)
        except lua51.LuaError as wrong:
            raise lua_node.FunctionFailed(f"{name}: {wrong}") from None
        return reply if isinstance(reply, tuple) else (reply,)

    def published(self) -> list[tuple[str, str]]:
        """The messages of the last call."""
        node = self._machine.node
        if len(node.published) == 0:
            return []
        found = [(message[1], message[2]) for message in node.published.values()]
        node.published = lua_node._list()
        return found

    def get(self, key: str, field: str) -> str | None:
        value: str | None = self._machine.get(self._data, key, field)
        return value

    def put(self, key: str, field: str, value: str) -> None:
        self._machine.put(self._data, key, field, value)

    def flush(self) -> None:
        self._machine.flush(self._data)
