-- What both libraries share; it stands in front of each of them when it is loaded.
--
-- A node's memory:
--   lk:node                  hash: id, run_id, life, incarnation, vector, birth, generation,
--                            rested, open, joined, epoch, members, max_ttl, cap, tick, agent, floor
--   lk:lock:NAMESPACE/NAME   hash: owner (candidate/attempt), expires (in ticks), fence (F), request,
--                            queue (who waits, first come first; a hint, no vote rests on it)
-- All times are whole microseconds of this node's own tick counter, never the wall clock. No key
-- has a Redis TTL. Arguments arrive as strings and are converted at the top of each function: "10"
-- < "9" is true. Every reply is an array {STATUS, ..., incarnation, vector}.

local NODE = 'lk:node'
local NODE_FIELDS = {
  'open', 'joined', 'epoch', 'members', 'max_ttl', 'cap', 'tick', 'floor', 'incarnation', 'vector',
  'life', 'id',
}

-- Lua's own conversion switches to exponents after 14 digits.
local function int(number)
  return string.format('%.0f', number)
end

local function read_node()
  local values = redis.call('HMGET', NODE, unpack(NODE_FIELDS))
  local node = {}
  for i, name in ipairs(NODE_FIELDS) do
    node[name] = values[i] or nil
  end
  node.tick = tonumber(node.tick) or 0
  node.floor = tonumber(node.floor) or 0
  node.cap = tonumber(node.cap) or 0
  node.max_ttl = tonumber(node.max_ttl) or 0
  return node
end

local function reply(node, ...)
  local answer = { ... }
  answer[#answer + 1] = node.incarnation or '0'
  answer[#answer + 1] = node.vector or ''
  return answer
end

local function read_lock(key, node)
  local values = redis.call('HMGET', key, 'owner', 'expires', 'fence', 'request')
  local expires = tonumber(values[2]) or 0
  local alive = values[1] and node.tick < expires
  return {
    owner = alive and values[1] or nil,
    left = alive and expires - node.tick or 0,
    -- F, the highest token that this node has voted for. A lock of which it knows nothing begins at
    -- the floor. Where it knows F, the floor has no say: it rises when another lock is forgotten, and
    -- must not depose this one's holder.
    fence = tonumber(values[3]) or node.floor,
    request = values[4] or '',
  }
end
