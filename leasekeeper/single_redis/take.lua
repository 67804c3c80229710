-- Takes the lock if it is free, or its lease is over, and raises the token.
-- ARGV  1 id   2 ttl (ms)   3 seen: the record's token must not be below   4 mine: an own id that may
--       be replaced   5, 6 between which times (ms) this clock must be for an expiry to count
-- A key that went before its end (evicted, deleted) frees nothing: its holder leads until its deadline.
-- A first token is the time: a record that was lost goes on above its old tokens.
local id, ttl, seen, mine = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local kept = redis.call('HMGET', record, 'token', 'holder', 'until')
local owner, token = redis.call('GET', lock), tonumber(kept[1])
if owner and owner ~= mine then return look('0') end
if token and token < seen then return look('0') end
local expired = not owner and token and kept[2] ~= '' and kept[2] ~= mine
if expired and (now < tonumber(ARGV[5]) or now > tonumber(ARGV[6])) then return look('0') end
local left = (tonumber(kept[3]) or now) - now
-- More than a lease is left of none: then this clock was set back.
if expired and left > 0 and left <= tonumber(ttl) then return look('0') end
token = token and token + 1 or math.max(seen + 1, now)
redis.call('SET', lock, id, 'PX', ttl)
redis.call('HSET', record, 'token', string.format('%.0f', token), 'holder', id,
  'until', string.format('%.0f', now + ttl))
return look('1')
