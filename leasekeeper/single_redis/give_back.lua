-- Frees the lock and keeps its token.   ARGV  1 id   2 channel on which waiters listen
-- Returns one text: 1 freed, 0 it was not this id's.
if redis.call('GET', lock) ~= ARGV[1] then return { '0' } end
redis.call('DEL', lock)
redis.call('HSET', record, 'holder', '')
-- No token: the record was evicted, or deleted by hand. Who waits is called all the same.
redis.call('PUBLISH', ARGV[2], redis.call('HGET', record, 'token') or '')
return { '1' }
