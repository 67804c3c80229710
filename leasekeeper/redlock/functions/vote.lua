-- The functions that vote. A node has them only while it may vote: the agent loads this library
-- last, when the node opens, and deletes it first, when it closes. KEYS[1] is the lock's key;
-- ARGV[1] is always the caller's epoch.
--
-- Before anything else, each function may answer
--   EPOCH mine members   the caller's list of nodes is not mine
--   CLOSED               I do not vote (yet); not a "no"
--   TTL max_ttl          asked to keep the entry for longer than I may; refused, because a shorter one would be a lie

local function refusal(node, epoch, ttl)
  if not node.open or not node.joined then
    return reply(node, 'CLOSED')
  end
  if node.epoch ~= epoch then
    return reply(node, 'EPOCH', node.epoch or '', node.members or '')
  end
  if ttl and not (ttl > 0 and ttl <= node.max_ttl) then
    return reply(node, 'TTL', int(node.max_ttl))
  end
end

-- Ends no earlier than `ttl` of true time after now: two caps make up for what the counter may be
-- behind or ahead (docs/protocol.md, "Time without a wall clock").
local function keep(key, node, id, ttl, fence)
  redis.call('HSET', key, 'owner', id, 'expires', int(node.tick + ttl + 2 * node.cap), 'fence', int(fence))
end

local function split(id)
  local candidate, attempt = string.match(id, '^(.*)/(%d+)$')
  return candidate, tonumber(attempt)
end

local function older_attempt_of_same(owner, id)
  local owner_candidate, owner_attempt = split(owner)
  local candidate, attempt = split(id)
  return candidate ~= nil and owner_candidate == candidate and owner_attempt < attempt
end

-- grant(epoch, id, ttl, guess): the first step of an attempt.
--   COMMITTED guess           entry taken, and F raised to the guess: a vote for the token `guess`
--   GRANTED F                 entry taken; the token must be larger than F, by commit
--   HELD owner left F request somebody else's entry is alive
--   PAUSED F                  nobody may hold this lock for now
local function grant(keys, args)
  local key, id, ttl, guess = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_node()
  local refused = refusal(node, args[1], ttl)
  if refused then return refused end
  local lock = read_lock(key, node)
  if string.match(lock.request, '^%d+ pause') then
    return reply(node, 'PAUSED', int(lock.fence))
  end
  if lock.owner and not older_attempt_of_same(lock.owner, id) then
    return reply(node, 'HELD', lock.owner, int(lock.left), int(lock.fence), lock.request)
  end
  if lock.fence < guess then
    keep(key, node, id, ttl, guess)
    return reply(node, 'COMMITTED', int(guess))
  end
  keep(key, node, id, ttl, lock.fence)
  return reply(node, 'GRANTED', int(lock.fence))
end

-- commit(epoch, id, t, ttl): the vote for token t.   OK | NOTMINE owner | HIGH F
local function commit(keys, args)
  local key, id, token, ttl = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_node()
  local refused = refusal(node, args[1], ttl)
  if refused then return refused end
  local lock = read_lock(key, node)
  if lock.owner ~= id then
    return reply(node, 'NOTMINE', lock.owner or '')
  end
  if lock.fence >= token then
    return reply(node, 'HIGH', int(lock.fence))
  end
  keep(key, node, id, ttl, token)
  return reply(node, 'OK')
end

-- renew(epoch, id, t, ttl): counts only if F proves that no later token was voted for here.
--   OK request | HIGH F | MISSING | NOTMINE owner
local function renew(keys, args)
  local key, id, token, ttl = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_node()
  local refused = refusal(node, args[1], ttl)
  if refused then return refused end
  local lock = read_lock(key, node)
  if lock.fence > token then
    return reply(node, 'HIGH', int(lock.fence))
  end
  if lock.owner == id then
    keep(key, node, id, ttl, token)
    return reply(node, 'OK', lock.request)
  end
  if not lock.owner then
    return reply(node, 'MISSING')
  end
  return reply(node, 'NOTMINE', lock.owner)
end

-- adopt(epoch, id, t, ttl): repairs a node that has no entry, after a renewal that was good without
-- it. Never counted.
--   OK | HIGH F | NOTMINE owner
local function adopt(keys, args)
  local key, id, token, ttl = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_node()
  local refused = refusal(node, args[1], ttl)
  if refused then return refused end
  local lock = read_lock(key, node)
  if lock.owner then
    return reply(node, 'NOTMINE', lock.owner)
  end
  if lock.fence > token then
    return reply(node, 'HIGH', int(lock.fence))
  end
  keep(key, node, id, ttl, token)
  return reply(node, 'OK')
end

-- release(epoch, id, led): clears the entry, keeps F. led = "1": tell the waiters.   OK | GONE
local function release(keys, args)
  local key, id, led = keys[1], args[2], args[3] == '1'
  local node = read_node()
  local refused = refusal(node, args[1])
  if refused then return refused end
  local lock = read_lock(key, node)
  if lock.owner ~= id then
    return reply(node, 'GONE')
  end
  redis.call('HDEL', key, 'owner', 'expires')
  if led then
    redis.call('PUBLISH', 'lk:freed:' .. string.sub(key, #'lk:lock:' + 1), int(lock.fence))
  end
  return reply(node, 'OK')
end

-- observe(epoch): for people and tools.   LOCK owner left F request tick
local function observe(keys, args)
  local node = read_node()
  local refused = refusal(node, args[1])
  if refused then return refused end
  local lock = read_lock(keys[1], node)
  return reply(node, 'LOCK', lock.owner or '', int(lock.left), int(lock.fence), lock.request, int(node.tick))
end

-- allow-oom: a tenant that fills a shared node's memory must not be able to stop the others'
-- renewals.
local SAFE_WHEN_FULL = { 'allow-oom' }
redis.register_function { function_name = 'lk1_grant', callback = grant }
redis.register_function { function_name = 'lk1_commit', callback = commit, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_renew', callback = renew, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_adopt', callback = adopt, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_release', callback = release, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_observe', callback = observe, flags = { 'no-writes' } }
