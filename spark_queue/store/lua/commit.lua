-- Removes what a tag and those below it hold, or the members that are named.
-- ARGV: tag, history (ms), members… Gives {messages removed, whether to call again}.

local tag, history = ARGV[1], tonumber(ARGV[2])
local found, more = selection(tag, 3)
local kept = examine(found)
local ids = kept.ids

if history > 0 then
  drain()
  local now = clock()
  local texts = documents(HASH, ids)
  more = more or #texts < #ids
  ids = take(ids, #texts)
  local entries, forget = {}, {}
  for i, document in ipairs(texts) do
    if document then
      local due = due_of(kept, i)
      entries[#entries + 1] = ids[i]
      entries[#entries + 1] = format('{"processed":%s,"mature":%s,"message":', digits(now), due) .. document .. '}'
      forget[#forget + 1], forget[#forget + 2] = digits(now + history), ids[i]
    end
  end
  spread('HSET', HISTORY, entries)
  spread('ZADD', PROCESSED, forget)
  local old = redis.call('ZRANGEBYSCORE', PROCESSED, '-inf', digits(now), 'LIMIT', 0, CHUNK)
  spread('ZREM', PROCESSED, old)
  spread('HDEL', HISTORY, old)
  local last = redis.call('ZREVRANGE', PROCESSED, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', HISTORY, last)
    redis.call('PEXPIREAT', PROCESSED, last)
  end
end

remove(ids)
release(found, from(kept, #ids + 1))
return { weigh(ids), more and 1 or 0 }
