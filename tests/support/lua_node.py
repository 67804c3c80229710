"""A node in this process: the real node functions in Lua 5.1, over an emulation of the few commands
that they use. `tests/redis/test_lua_emulation.py` shows that its answers are a real server's.

The emulation itself is Lua, so that one call crosses between the languages once. All nodes of a
process share one interpreter; each has its own data and its own libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lupa import lua51

from leasekeeper.redlock import functions

_EMULATION = r"""
local commands = {}

local NOTHING = {}

function commands.HMGET(data, key, ...)
  local hash, values = data[key] or NOTHING, { ... }
  for i = 1, #values do values[i] = hash[values[i]] or false end
  return values
end

function commands.HGET(data, key, field)
  return (data[key] or NOTHING)[field] or false
end

function commands.HSET(data, key, ...)
  local hash, added, args = data[key] or {}, 0, { ... }
  data[key] = hash
  for i = 1, #args, 2 do
    local field = args[i]
    if not hash[field] then added = added + 1 end
    hash[field] = tostring(args[i + 1])
  end
  return added
end

function commands.HDEL(data, key, ...)
  local hash, removed = data[key] or {}, 0
  for _, field in ipairs({ ... }) do
    if hash[field] then removed = removed + 1 end
    hash[field] = nil
  end
  if next(hash) == nil then data[key] = nil end
  return removed
end

function commands.DEL(data, key)
  local removed = data[key] and 1 or 0
  data[key] = nil
  return removed
end

function commands.DBSIZE(data)
  local size = 0
  for _ in pairs(data) do size = size + 1 end
  return size
end

function commands.SCAN(data, _, match, pattern)
  assert(match == 'MATCH' and string.sub(pattern, -1) == '*', 'only a prefix is emulated')
  local prefix, keys = string.sub(pattern, 1, -2), {}
  for key in pairs(data) do
    if string.sub(key, 1, #prefix) == prefix then keys[#keys + 1] = key end
  end
  table.sort(keys)
  return { '0', keys }
end

function commands.FLUSHALL(data)
  for key in pairs(data) do data[key] = nil end
  return { ok = 'OK' }
end

local function new()
  local node = { data = {}, callbacks = {}, libraries = {}, published = {} }

  function node.listeners() return 1 end

  function node.call(name, ...)
    if name == 'PUBLISH' then
      local channel = ...
      node.published[#node.published + 1] = { ... }
      return node.listeners(channel)
    end
    local command = commands[name] or error('not emulated: ' .. name)
    return command(node.data, ...)
  end

  function node.load(library, source)
    node.delete(library)
    local names = {}
    local redis = { call = node.call }
    function redis.register_function(description)
      names[#names + 1] = description.function_name
      node.callbacks[description.function_name] = description.callback
    end
    local chunk = assert(loadstring(source, library))
    setfenv(chunk, setmetatable({ redis = redis }, { __index = _G }))()
    node.libraries[library] = names
  end

  function node.delete(library)
    for _, name in ipairs(node.libraries[library] or {}) do node.callbacks[name] = nil end
    node.libraries[library] = nil
  end

  function node.fcall(name, keys, args)
    local callback = node.callbacks[name]
    if not callback then return false end
    return true, unpack(callback(keys, args))
  end

  return node
end

local function list(...) return { ... } end

return new, list
"""

_lua: Any = lua51.LuaRuntime(unpack_returned_tuples=True)
_new, _list = _lua.execute(_EMULATION)


class FunctionNotFound(Exception):
    """What a server answers when the library that has the function is not loaded."""


class FunctionFailed(Exception):
    """A mistake in the function or its arguments; a server answers with an error."""


class LuaNode:
    """One node's memory and libraries. `sources` replaces the source of a library, by its name:
    that is how a test takes a protection away.
    """

    def __init__(self, sources: Mapping[str, str] | None = None) -> None:
        self._node = _new()
        self._sources = sources or {}
        self.load(functions.ADMIN)

    def load(self, library: str) -> None:
        source = self._sources.get(library) or functions.library(library)
        self._node.load(library, source.split("\n", 1)[1])  # without the line `#!lua name=…`

    def delete(self, library: str) -> None:
        self._node.delete(library)

    def fcall(self, function: str, *args: str | int, key: str | None = None) -> list[str]:
        """As FCALL; `key` is the lock's, for functions that vote."""
        keys = _list() if key is None else _list(key)
        try:
            found, *reply = self._node.fcall(function, keys, _list(*map(str, args)))
        except lua51.LuaError as wrong:
            raise FunctionFailed(str(wrong)) from None
        except TypeError:  # a single value is not a tuple
            raise FunctionNotFound(function) from None
        if not found:
            raise FunctionNotFound(function)
        return list(reply)

    def call(self, command: str, *args: str) -> Any:
        """A plain command of those that are emulated."""
        return self._node.call(command, *args)

    def flushall(self) -> None:
        self._node.call("FLUSHALL")

    @property
    def data(self) -> dict[str, dict[str, str]]:
        """A copy of all keys."""
        return {key: dict(hash.items()) for key, hash in self._node.data.items()}

    def get(self, key: str, field: str) -> str | None:
        value: str | bool = self._node.call("HGET", key, field)
        return value if isinstance(value, str) else None

    def take_published(self) -> Sequence[tuple[str, str]]:
        """The messages since the last look: channel and text."""
        found = [(message[1], message[2]) for message in self._node.published.values()]
        self._node.published = _list()
        return found
