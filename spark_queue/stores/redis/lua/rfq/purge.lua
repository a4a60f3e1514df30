-- Remove messages of the backlog or the nextlog, CHUNK at a time, the oldest first. Return their
-- ids.
-- ARGV: 'backlog' or 'nextlog'.

local ids = redis.call('RPOP', ARGV[1] == 'backlog' and LIST or NEXT, CHUNK) or {}
for _, id in ipairs(ids) do
  redis.call('UNLINK', MESSAGE .. id)
end
call_many('HDEL', MORE, ids)
call_many('ZREM', INDEX, ids)
call_many('HDEL', HASH, ids)
return ids
