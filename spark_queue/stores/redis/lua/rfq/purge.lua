-- Removes messages of the backlog or the nextlog, CHUNK at a time, the oldest first, and gives their ids.
-- ARGV: 'backlog' or 'nextlog'.

local ids = redis.call('RPOP', ARGV[1] == 'backlog' and LIST or NEXT, CHUNK) or {}
for _, id in ipairs(ids) do
  redis.call('UNLINK', MESSAGE .. id)
end
spread('HDEL', MORE, ids)
spread('ZREM', INDEX, ids)
spread('HDEL', HASH, ids)
return ids
