-- Moves the end of a lease on, if it is still this one.   ARGV  1 id   2 token   3 ttl (ms)
if redis.call('GET', lock) ~= ARGV[1] or redis.call('HGET', record, 'token') ~= ARGV[2] then
  return look('0')
end
redis.call('PEXPIRE', lock, ARGV[3])
redis.call('HSET', record, 'until', string.format('%.0f', now + ARGV[3]))
return look('1')
