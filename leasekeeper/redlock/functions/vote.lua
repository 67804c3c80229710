-- The functions that vote. A node has them only while it may vote: the agent loads this library
-- last, when the node opens, and deletes it first, when it closes. KEYS[1] is the lock's key;
-- ARGV[1] is always the caller's epoch.
--
-- Before anything else, each function may answer
--   EPOCH mine members   the caller's list of nodes is not mine; here is mine
--   CLOSED               I do not vote (yet): not open, or raised and not joined; not a "no"
--   TTL max_ttl          asked to keep the entry for longer than I may; refused, because a shorter one would be a lie

-- Of the node only what a vote needs: this is most of what a call costs.
local function read_voter()
  local values = redis.call('HMGET', NODE, 'open', 'joined', 'epoch', 'tick', 'incarnation', 'vector',
    'max_ttl', 'cap', 'floor')
  return {
    open = values[1], joined = values[2], epoch = values[3], tick = tonumber(values[4]) or 0,
    incarnation = values[5], vector = values[6], max_ttl = tonumber(values[7]) or 0,
    cap = tonumber(values[8]) or 0, floor = tonumber(values[9]) or 0,
  }
end

local function refusal(node, epoch, ttl)
  if not node.open then
    return reply(node, 'CLOSED')
  end
  if node.epoch ~= epoch then
    return reply(node, 'EPOCH', node.epoch or '', redis.call('HMGET', NODE, 'members')[1] or '')
  end
  if not node.joined then
    return reply(node, 'CLOSED')
  end
  if ttl and not (ttl > 0 and ttl <= node.max_ttl) then
    return reply(node, 'TTL', int(node.max_ttl))
  end
end

-- Ends no earlier than `ttl` of true time after now: two caps make up for what the counter may be
-- behind or ahead (docs/protocol.md, "Time without a wall clock").
local function keep(key, node, id, ttl, fence)
  fence = int(fence)
  redis.call('HSET', key, 'owner', id, 'expires', int(node.tick + ttl + 2 * node.cap), 'fence', fence)
  return fence
end

local function split(id)
  local candidate, attempt = string.match(id, '^(.*)/(%d+)$')
  return candidate, tonumber(attempt)
end

-- The queue: one field of the lock's hash, "\nCANDIDATE EXPIRY" for each who waits, in the order in
-- which they came. It is kept as text because text is cut and joined at the price of copying it,
-- where fifty fields would have to be read and sorted at each release. Whoever gets the lock stays in
-- it until it gives the lock back, so a vote that was split costs nobody its turn. What makes no
-- sense, because a tenant wrote it, ends the queue there.
local ENTRY = '^\n(%S+) (%d+)'

-- More than a hundred candidates with the ids of pods. The next ones wait by their timers.
local LONGEST_QUEUE = 16384

-- None: nobody waits, or a tenant wrote it. A megabyte of it would take a release two seconds, in
-- which the node votes for nobody. (Expiries grow by a digit now and then, hence a little more.)
local function read_queue(key)
  local queue = redis.call('HMGET', key, 'queue')[1]
  return queue and #queue <= LONGEST_QUEUE + 1024 and queue or nil
end

-- Each who waits looks again within the longest lease: after two of them it is gone.
local function stays_until(node)
  return int(node.tick + 2 * node.max_ttl)
end

local function without_expired(queue, now)
  local kept, from, to, candidate, expiry = {}, 1, 0, nil, nil
  repeat
    from, to, candidate, expiry = string.find(queue, ENTRY, to + 1)
    if from and tonumber(expiry) > now then
      kept[#kept + 1] = string.sub(queue, from, to)
    end
  until not from
  return table.concat(kept)
end

-- Whoever is in the queue keeps its turn; only its expiry moves on.
local function enqueue(key, node, candidate)
  if not candidate or string.find(candidate, '%s') then return end
  local queue = read_queue(key) or ''
  local from, to = string.find(queue, '\n' .. candidate .. ' ', 1, true)
  if from then
    local rest = string.match(queue, '^%d*()', to + 1)
    queue = string.sub(queue, 1, to) .. stays_until(node) .. string.sub(queue, rest)
  else
    local entry = '\n' .. candidate .. ' ' .. stays_until(node)
    if #queue + #entry > LONGEST_QUEUE then
      queue = without_expired(queue, node.tick)
    end
    if #queue + #entry > LONGEST_QUEUE then return end
    queue = queue .. entry
  end
  redis.call('HSET', key, 'queue', queue)
end

-- Takes a candidate's turn away, where it stands.
local function leave(key, candidate)
  local queue = candidate and read_queue(key)
  if not queue then return end
  local from, to = string.find(queue, '\n' .. candidate .. ' ', 1, true)
  if not from then return end
  local rest = string.match(queue, '^%d*()', to + 1)
  redis.call('HSET', key, 'queue', string.sub(queue, 1, from - 1) .. string.sub(queue, rest))
end

-- Tells the first `most` who wait that the lock is free, each on a channel of its own, with its rank.
-- PUBLISH says how many listen: nobody, then that process is gone and so is its turn. The first one
-- is expected to come at once: if it does not, it loses its turn soon.
local function call_next(key, node, leaver, fence, most)
  local queue = read_queue(key)
  if not queue then return '' end
  local channel = 'lk:freed:' .. string.sub(key, #'lk:lock:' + 1) .. '/'
  local kept, told, first, from, to, candidate, expiry = {}, 0, '', 1, 0, nil, nil
  while told < most do
    local last = to
    from, to, candidate, expiry = string.find(queue, ENTRY, last + 1)
    if not from then
      queue = ''
      break
    end
    if candidate ~= leaver and tonumber(expiry) > node.tick
        and redis.call('PUBLISH', channel .. candidate, int(fence) .. ' ' .. told) > 0 then
      if told == 0 then
        first, expiry = candidate, int(node.tick + 2 * node.cap)
      end
      kept[#kept + 1] = '\n' .. candidate .. ' ' .. expiry
      told = told + 1
    end
  end
  queue = table.concat(kept) .. string.sub(queue, (to or 0) + 1)
  if queue == '' then
    redis.call('HDEL', key, 'queue')
  else
    redis.call('HSET', key, 'queue', queue)
  end
  return first
end

local function older_attempt_of_same(owner, id)
  local owner_candidate, owner_attempt = split(owner)
  local candidate, attempt = split(id)
  return candidate ~= nil and owner_candidate == candidate and owner_attempt < attempt
end

-- Whether a request from outside keeps this candidate from the lock (admin.lua, request): a pause
-- keeps everybody, a step-down the pod that was asked, whichever process of it comes.
local function kept_out(request, id, now)
  if request == '' then return false end
  local kind, target, ends = string.match(request, '^%d+ (%S+) ?(%S*) ?%d* ?(%d*)')
  if kind ~= 'step-down' then return kind == 'pause' end
  local pod = string.match(target, '^[^/]+/[^/]+/')
  return pod ~= nil and string.sub(id, 1, #pod) == pod and now < (tonumber(ends) or 0)
end

-- grant(epoch, id, ttl, guess): the first step of an attempt.
--   COMMITTED guess           entry taken, and F raised to the guess: a vote for the token `guess`
--   GRANTED F                 entry taken; the token must be larger than F, by commit
--   HELD owner left F request somebody else's entry is alive; the caller is in the queue now
--   PAUSED F                  nobody, or not this pod, may hold this lock for now
local function grant(keys, args)
  local key, id, ttl, guess = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_voter()
  local refused = refusal(node, args[1], ttl)
  if refused then return refused end
  local lock = read_lock(key, node)
  if kept_out(lock.request, id, node.tick) then
    return reply(node, 'PAUSED', int(lock.fence))
  end
  if lock.owner and not older_attempt_of_same(lock.owner, id) then
    enqueue(key, node, (split(id)))
    return reply(node, 'HELD', lock.owner, int(lock.left), int(lock.fence), lock.request)
  end
  if lock.fence < guess then
    return reply(node, 'COMMITTED', keep(key, node, id, ttl, guess))
  end
  return reply(node, 'GRANTED', keep(key, node, id, ttl, lock.fence))
end

-- commit(epoch, id, t, ttl): the vote for token t.   OK | NOTMINE owner | HIGH F
local function commit(keys, args)
  local key, id, token, ttl = keys[1], args[2], tonumber(args[3]), tonumber(args[4])
  local node = read_voter()
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
  local node = read_voter()
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
  local node = read_voter()
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

-- release(epoch, id, tell): clears the entry, keeps F, and tells so many of those who wait. The
-- successor is the first who was told; none: nobody waits, or nobody was to be told.
--   OK successor | GONE
local function release(keys, args)
  local key, id, tell = keys[1], args[2], tonumber(args[3]) or 0
  local node = read_voter()
  local refused = refusal(node, args[1])
  if refused then return refused end
  local lock = read_lock(key, node)
  if lock.owner ~= id then
    -- It led without this node. Its turn is over here, too, or it would go before those who wait.
    if tell > 0 then leave(key, (split(id))) end
    return reply(node, 'GONE')
  end
  redis.call('HDEL', key, 'owner', 'expires')
  if tell > 0 then
    return reply(node, 'OK', call_next(key, node, split(id), lock.fence, tell))
  end
  return reply(node, 'OK')
end

-- wait(epoch, id): joins the queue without trying.   OK
local function wait(keys, args)
  local node = read_voter()
  local refused = refusal(node, args[1])
  if refused then return refused end
  enqueue(keys[1], node, (split(args[2])))
  return reply(node, 'OK')
end

-- observe(epoch): for people and tools.   LOCK owner left F request tick
local function observe(keys, args)
  local node = read_voter()
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
redis.register_function { function_name = 'lk1_wait', callback = wait }
redis.register_function { function_name = 'lk1_observe', callback = observe, flags = { 'no-writes' } }
