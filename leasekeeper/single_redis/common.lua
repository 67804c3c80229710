-- One Redis as a store: what every script begins with.
-- KEYS  1 the lock, with a Redis TTL: the holder's id   2 its record, a hash without TTL: token,
--       holder (empty once it was released), until (ms)
-- look(done) returns six texts, because a Lua number would leave as an integer: done (1: changed as
--       asked), now (ms, by this server's clock), holder, token, left (ms), whether there is a record
local lock, record = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function look(done)
  local kept = redis.call('HMGET', record, 'token', 'holder', 'until')
  local owner, left = redis.call('GET', lock), redis.call('PTTL', lock)
  local holder = owner or kept[2] or ''
  if not owner then left = (tonumber(kept[3]) or now) - now end
  if left == -1 and owner then left = 10^9 end -- without a TTL it never ends: a SETNX, or a hold
  return { done, string.format('%.0f', now), holder, kept[1] or '0',
    string.format('%.0f', left), kept[1] and '1' or '0' }
end
