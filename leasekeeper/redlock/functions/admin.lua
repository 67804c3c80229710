-- The functions of agents and of the operator: a node's time, its life and its recovery. Nothing
-- here votes. The agent loads this library as soon as it sees the server. No function takes KEYS;
-- candidates' users may call none.
--
-- A *life* is the name of one unbroken memory: random, given by the agent to a memory that it finds
-- empty. Whoever talks to a memory that may have been lost in between names the life it means.

-- Beyond this, a number was not made by the protocol (it counts from unix milliseconds), and Lua's
-- doubles are near the end of what they count exactly: a tenant may have written it into its key.
local NOT_A_TOKEN = 2 ^ 52
local LONGEST_TOKEN = 16 -- digits

-- enter(life, cap, run_id, id): begins a new life, closed, of node `id`. The run_id is that of the
-- server process: a memory that carries another one came from a disk or a replica, and is wiped.
--   OK | ALIVE life
local function enter(_, args)
  local life, cap, run_id, id = args[1], tonumber(args[2]), args[3], args[4]
  local node = read_node()
  if node.life and redis.call('HGET', NODE, 'run_id') == run_id then
    return reply(node, 'ALIVE', node.life)
  end
  redis.call('FLUSHALL', 'SYNC')
  redis.call('HSET', NODE, 'life', life, 'cap', int(cap), 'tick', '0', 'run_id', run_id, 'id', id)
  return reply(read_node(), 'OK')
end

-- register(life, nonce): from now on only ticks with this nonce count. A nonce is fresh for every
-- connection.
--   OK open | REFUSED life
local function register(_, args)
  local life, nonce = args[1], args[2]
  local node = read_node()
  if node.life ~= life then
    return reply(node, 'REFUSED', node.life or '')
  end
  redis.call('HSET', NODE, 'agent', nonce)
  return reply(node, 'OK', node.open or '0')
end

-- tick(nonce, d): moves this node's time on by d, at most by the cap.   OK tick open | REFUSED
-- The cap is applied here and not by the agent, because a tick may be as late as it likes.
local function tick(_, args)
  local nonce, delta = args[1], tonumber(args[2])
  local values = redis.call('HMGET', NODE, 'agent', 'tick', 'cap', 'open')
  if values[1] ~= nonce then
    return { 'REFUSED' }
  end
  local now = tonumber(values[2]) + math.max(0, math.min(math.floor(delta), tonumber(values[3])))
  redis.call('HSET', NODE, 'tick', int(now))
  return { 'OK', int(now), values[4] or '0' }
end

local function read_vector(text)
  local vector = {}
  for id, incarnation in string.gmatch(text or '', '([^:,]+):(%d+)') do
    vector[id] = tonumber(incarnation)
  end
  return vector
end

local function write_vector(vector)
  local ids, parts = {}, {}
  for id in pairs(vector) do ids[#ids + 1] = id end
  table.sort(ids)
  for _, id in ipairs(ids) do parts[#parts + 1] = id .. ':' .. int(vector[id]) end
  return table.concat(parts, ',')
end

-- announce(node, i): node says that it begins its i-th life. From now on this node's replies make
-- its older votes not count. Only a number above the known one is taken, so no two lives of a node
-- can have the same number at a quorum. VOID: I have no memory yet that could keep it, or it is my
-- own name: then somebody tells me that a later server of that name has announced itself.
--   OK max_ttl life | LOW known | VOID
local function announce(_, args)
  local id, incarnation = args[1], tonumber(args[2])
  local node = read_node()
  if not node.life then
    return reply(node, 'VOID')
  end
  local vector = read_vector(node.vector)
  local known = vector[id] or 0
  if node.id == id then
    vector[id] = math.max(known, incarnation)
    redis.call('HSET', NODE, 'vector', write_vector(vector))
    return reply(read_node(), 'VOID')
  end
  if incarnation <= known then
    return reply(node, 'LOW', int(known))
  end
  vector[id] = incarnation
  redis.call('HSET', NODE, 'vector', write_vector(vector))
  return reply(read_node(), 'OK', int(node.max_ttl), node.life)
end

-- become(life, node, i): records this node's own announced incarnation.   OK | REFUSED life
local function become(_, args)
  local life, id, incarnation = args[1], args[2], tonumber(args[3])
  local node = read_node()
  if node.life ~= life then
    return reply(node, 'REFUSED', node.life or '')
  end
  local vector = read_vector(node.vector)
  vector[id] = math.max(vector[id] or 0, incarnation)
  -- A birth may have given this life a higher number meanwhile.
  incarnation = math.max(tonumber(node.incarnation) or 0, incarnation)
  redis.call('HSET', NODE, 'incarnation', int(incarnation), 'vector', write_vector(vector))
  return reply(read_node(), 'OK')
end

-- rest(life): this life's quarantine is over; a total loss is only mended by nodes that rested.
--   OK | REFUSED life
local function rest(_, args)
  local node = read_node()
  if node.life ~= args[1] then
    return reply(node, 'REFUSED', node.life or '')
  end
  redis.call('HSET', NODE, 'rested', '1')
  return reply(node, 'OK')
end

-- dump(cursor): what a recovering node must learn, a page at a time. A lock whose key is made while
-- the pages are read may be missing: its votes already carry the announcement, so they do not count
-- together with a forgotten one.
--   OPEN|CLOSED cursor life epoch floor max_ttl lock F lock F ...
local function dump(_, args)
  local node = read_node()
  local page = redis.call('SCAN', args[1], 'MATCH', 'lk:lock:*', 'COUNT', 500)
  local answer = {
    node.open and 'OPEN' or 'CLOSED', page[1], node.life or '', node.epoch or '', int(node.floor),
    int(node.max_ttl),
  }
  for _, key in ipairs(page[2]) do
    answer[#answer + 1] = string.sub(key, #'lk:lock:' + 1)
    -- No token is that long; a tenant may have written a megabyte there.
    answer[#answer + 1] = string.sub(redis.call('HGET', key, 'fence') or '0', 1, LONGEST_TOKEN + 1)
  end
  answer[#answer + 1] = node.incarnation or '0'
  answer[#answer + 1] = node.vector or ''
  return answer
end

-- learn(life, floor, vector, lock, F, lock, F, ...): takes in what others know; nothing ever goes
-- down.   OK | REFUSED life
local function learn(_, args)
  local node = read_node()
  if node.life ~= args[1] then
    return reply(node, 'REFUSED', node.life or '')
  end
  local vector = read_vector(node.vector)
  for id, incarnation in pairs(read_vector(args[3])) do
    vector[id] = math.max(vector[id] or 0, incarnation)
  end
  local floor = math.max(node.floor, tonumber(args[2]))
  redis.call('HSET', NODE, 'floor', int(floor), 'vector', write_vector(vector))
  for i = 4, #args, 2 do
    local key, fence = 'lk:lock:' .. args[i], tonumber(args[i + 1])
    if fence and fence < NOT_A_TOKEN then
      -- A memory that is being joined has tenants, and one of them may have written nonsense there.
      local known = tonumber(redis.call('HGET', key, 'fence') or '')
      if not (known and known >= fence) then
        redis.call('HSET', key, 'fence', int(fence))
      end
    end
  end
  return reply(read_node(), 'OK')
end

-- After a total loss, what a survivor or a half-recovered node knows of a lock may be old: nobody
-- may go on below the floor of the new birth.
local function raise_fences(floor)
  local cursor = '0'
  repeat
    local page = redis.call('SCAN', cursor, 'MATCH', 'lk:lock:*', 'COUNT', 500)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      if (tonumber(redis.call('HGET', key, 'fence')) or 0) < floor then
        redis.call('HSET', key, 'fence', int(floor))
      end
    end
  until cursor == '0'
end

-- birth(life, generation, floor, incarnation_floor, member, member, ...): this life is in the
-- registry's record of a birth: it may open without asking others. After a total loss every member
-- is known to have outlived the floor of incarnations, so that no server of before it counts.
--   OK | REFUSED life
local function birth(_, args)
  local life, generation, floor = args[1], tonumber(args[2]), tonumber(args[3])
  local node = read_node()
  if node.life ~= life then
    return reply(node, 'REFUSED', node.life or '')
  end
  local vector, least = read_vector(node.vector), (tonumber(args[4]) or 0) + 1
  for i = 5, #args do
    vector[args[i]] = math.max(vector[args[i]] or 0, least)
  end
  -- A late caller may know an older record.
  generation = math.max(generation, tonumber(redis.call('HGET', NODE, 'birth') or '0'))
  redis.call('HSET', NODE, 'birth', int(generation), 'floor', int(math.max(node.floor, floor)),
    'generation', int(generation), 'vector', write_vector(vector),
    'incarnation', int(math.max(tonumber(node.incarnation) or 0, least)))
  raise_fences(floor)
  return reply(read_node(), 'OK')
end

-- An epoch is NUMBER-HASH. Nothing but a larger number leads from one to the next.
local function number_of(epoch)
  return tonumber(string.match(epoch or '', '^(%d+)-')) or 0
end

-- open(life, epoch, members, max_ttl, generation, joined): the mark in the data. The node votes when
-- the library `vote` is loaded, too. The generation is that of the birth, or of those it learnt from.
-- joined is 0 if all of those were raised, and none of them joined yet: then this one waits as well.
-- REFUSED also if it was joined in a later epoch meanwhile.
--   OK | REFUSED life
local function open(_, args)
  local life, epoch, members, max_ttl = args[1], args[2], args[3], tonumber(args[4])
  local node = read_node()
  if node.life ~= life or number_of(node.epoch) > number_of(epoch) then
    return reply(node, 'REFUSED', node.life or '')
  end
  redis.call('HSET', NODE, 'epoch', epoch, 'members', members, 'max_ttl', int(max_ttl),
    'generation', args[5] or '0', 'open', '1')
  if args[6] ~= '0' then
    redis.call('HSET', NODE, 'joined', '1')
  end
  return reply(read_node(), 'OK')
end

-- close(): takes the mark away, and ends the life: a memory that was closed is not trusted again.
--   OK
local function close()
  redis.call('HDEL', NODE, 'open', 'life', 'agent')
  return reply(read_node(), 'OK')
end

-- state(): for agents, the operator and people.
--   NODE life birth open joined epoch floor tick locks id rested run_id generation members
local function state()
  local node = read_node()
  local more = redis.call('HMGET', NODE, 'birth', 'rested', 'run_id', 'generation')
  local locks = math.max(0, redis.call('DBSIZE') - 1)
  return reply(node, 'NODE', node.life or '', more[1] or '0', node.open or '0', node.joined or '0',
    node.epoch or '', int(node.floor), int(node.tick), int(locks), node.id or '', more[2] or '0',
    more[3] or '', more[4] or '0', node.members or '')
end

-- forget(lock, largest): the lock was deleted. Its F is folded into the floor, so that a lock of the
-- same name goes on above it. One tenant's nonsense must not become the floor of all: with one just
-- below NOT_A_TOKEN no new lock could be won. So F above `largest` is not believed, which the caller
-- takes from the clock and the record of births (registry.py, `largest_plausible`): neither rises by
-- what is forgotten, or a tenant could climb to it step by step.
--   OK | HELD owner
local function forget(_, args)
  local key, largest = 'lk:lock:' .. args[1], tonumber(args[2])
  local node = read_node()
  local lock = read_lock(key, node)
  if lock.owner then
    return reply(node, 'HELD', lock.owner)
  end
  if lock.fence <= largest and lock.fence < NOT_A_TOKEN then
    redis.call('HSET', NODE, 'floor', int(math.max(node.floor, lock.fence)))
  end
  redis.call('DEL', key)
  return reply(read_node(), 'OK')
end

-- entries(cursor): the locks that somebody holds here, or of whose holder something is asked, a page
-- at a time: the operator's look at all of them costs one call a node.
--   OPEN|CLOSED cursor lock owner F request lock owner F request ...
local LONGEST_FIELD = 512

local function entries(_, args)
  local node = read_node()
  local page = redis.call('SCAN', args[1], 'MATCH', 'lk:lock:*', 'COUNT', 500)
  local answer = { node.open and 'OPEN' or 'CLOSED', page[1] }
  for _, key in ipairs(page[2]) do
    local lock = read_lock(key, node)
    if lock.owner or lock.request ~= '' then
      answer[#answer + 1] = string.sub(key, #'lk:lock:' + 1)
      -- A tenant may have written a megabyte there; no id is that long.
      answer[#answer + 1] = string.sub(lock.owner or '', 1, LONGEST_FIELD)
      answer[#answer + 1] = int(lock.fence)
      answer[#answer + 1] = string.sub(lock.request, 1, LONGEST_FIELD)
    end
  end
  answer[#answer + 1] = node.incarnation or '0'
  answer[#answer + 1] = node.vector or ''
  return answer
end

-- request(lock, sequence, kind, target, seconds): what somebody outside asks of the holder; its next
-- renewal brings it there.
--   pause       nobody may hold the lock, until
--   resume
--   step-down   the holder whose id (candidate/attempt) is `target` gives up, and for so many seconds
--               of this node's time nothing is granted here to its pod, restarted or not
-- Only a sequence above the known one is taken, so that a late caller undoes nothing; the same
-- request again is OK, and moves no end. A node that lost its memory lost this with it: whoever asks
-- for something that lasts goes on asking.
--   OK | LOW known | CLOSED
local KINDS = { pause = true, resume = true, ['step-down'] = true }

local function request(_, args)
  local key, sequence, kind, target = 'lk:lock:' .. args[1], tonumber(args[2]), args[3], args[4] or ''
  local seconds = tonumber(args[5]) or 0
  if not KINDS[kind] or string.find(target, '%s') or not (seconds >= 0 and seconds <= 1e6) then
    error('not a request: ' .. kind)
  end
  local node = read_node()
  if not node.open then
    return reply(node, 'CLOSED')
  end
  local lock = read_lock(key, node)
  local wish = string.format('%.0f %s %s %.0f', sequence, kind, target == '' and '-' or target, seconds)
  local known = tonumber(string.match(lock.request, '^(%d+) ')) or 0
  if known >= sequence and known < NOT_A_TOKEN then
    local same = string.sub(lock.request, 1, #wish + 1) == wish .. ' '
    return same and reply(node, 'OK') or reply(node, 'LOW', int(known))
  end
  -- With F, as every entry: whoever recovers from here would take a lock without it for one at 0.
  local ends = int(node.tick + seconds * 1e6)
  redis.call('HSET', key, 'request', wish .. ' ' .. ends, 'fence', int(lock.fence))
  return reply(node, 'OK')
end

-- Also what a change of membership ends with, because what it begins with is: nobody votes in
-- between. And `forget`: the lock whose tenant filled the memory must be one that can be deleted.
local SAFE_WHEN_FULL = { 'allow-oom' }
redis.register_function { function_name = 'lk1_enter', callback = enter }
redis.register_function { function_name = 'lk1_register', callback = register, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_tick', callback = tick, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_announce', callback = announce, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_become', callback = become }
redis.register_function { function_name = 'lk1_rest', callback = rest }
redis.register_function { function_name = 'lk1_dump', callback = dump, flags = { 'no-writes' } }
redis.register_function { function_name = 'lk1_learn', callback = learn, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_birth', callback = birth }
redis.register_function { function_name = 'lk1_open', callback = open }
redis.register_function { function_name = 'lk1_close', callback = close, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_state', callback = state, flags = { 'no-writes' } }
redis.register_function { function_name = 'lk1_entries', callback = entries, flags = { 'no-writes' } }
redis.register_function { function_name = 'lk1_forget', callback = forget, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_request', callback = request }
