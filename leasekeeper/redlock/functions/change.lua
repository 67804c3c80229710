-- The functions of a change of membership (docs/protocol.md, §6): part of the library `admin`, for the
-- operator. raise -> wait D -> dump from the same nodes -> learn and join on those of the new list.

-- raise(life, epoch, members): a change of membership begins. From now on this memory votes for
-- nobody, until it is joined, and hands the new list to whoever comes with another one. What was
-- joined already stays joined: whoever goes on with a change raises again.
--   OK | REFUSED life | CLOSED | EPOCH mine
local function raise(_, args)
  local life, epoch, members = args[1], args[2], args[3]
  local node = read_node()
  if node.life ~= life then
    return reply(node, 'REFUSED', node.life or '')
  end
  if not node.open then
    return reply(node, 'CLOSED')
  end
  if node.epoch ~= epoch then
    if number_of(epoch) <= number_of(node.epoch) then
      return reply(node, 'EPOCH', node.epoch or '')
    end
    redis.call('HDEL', NODE, 'joined')
    redis.call('HSET', NODE, 'epoch', epoch, 'members', members)
  end
  return reply(node, 'OK')
end

-- join(life, epoch, members, max_ttl, cap, generation): this memory votes in the new epoch. It has
-- learnt (`learn`) what the old list knew. A memory that was never open must have announced itself
-- and rested; that it is not one that was joined before, and forgot, is for the caller to know.
-- With another cap the agent must register anew: it then counts only time after that, so that
-- nothing is left over of what the old cap let through.
--   OK | REFUSED life | CLOSED | EPOCH mine
local function join(_, args)
  local life, epoch, members, max_ttl, cap = args[1], args[2], args[3], args[4], args[5]
  local node = read_node()
  if node.life ~= life then
    return reply(node, 'REFUSED', node.life or '')
  end
  if not node.open and not (node.incarnation and redis.call('HGET', NODE, 'rested')) then
    return reply(node, 'CLOSED')
  end
  if node.epoch ~= epoch and number_of(epoch) <= number_of(node.epoch) then
    return reply(node, 'EPOCH', node.epoch or '')
  end
  if node.cap ~= tonumber(cap) then
    redis.call('HDEL', NODE, 'agent')
  end
  redis.call('HSET', NODE, 'epoch', epoch, 'members', members, 'max_ttl', max_ttl, 'cap', cap,
    'joined', '1', 'open', '1')
  if not node.open then
    redis.call('HSET', NODE, 'generation', args[6])
  end
  return reply(read_node(), 'OK')
end

redis.register_function { function_name = 'lk1_raise', callback = raise, flags = SAFE_WHEN_FULL }
redis.register_function { function_name = 'lk1_join', callback = join, flags = SAFE_WHEN_FULL }
