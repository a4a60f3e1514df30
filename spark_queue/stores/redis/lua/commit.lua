-- Removes what a tag and those below it hold, or the members that are named.
-- ARGV: tag, history (ms), consumer, outcome, members… Gives {messages removed, whether to call again}.

local tag, history, consumer, outcome = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

-- Removes runs that are held as a whole, CHUNK messages of them; gives how many messages and records these are, and
-- whether (1) runs are left.
local function remove_whole()
  local gone, tags, removed, records = {}, {}, 0, 0
  local alike, left = redis.call('EXISTS', BUCKETS) == 0, 0
  for _, range in ipairs(ranges(tag)) do
    local found = redis.call('ZRANGEBYLEX', HELD, range[1], range[2], 'LIMIT', 0, math.ceil(CHUNK / RUN))
    for _, run in ipairs(found) do
      local ids, rank = whole(run)
      if ids and records < CHUNK then
        redis.call('ZREMRANGEBYRANK', INDEX, rank, rank + #ids - 1)
        spread('HDEL', HASH, ids)
        spread('ZREM', BUCKETS, alike and {} or buckets_of(ids))
        if lists then
          lists.forget(ids)
        end
        removed, records = removed + (alike and #ids or weigh(ids)), records + #ids
        gone[#gone + 1], tags[#tags + 1] = run, sub(run, 1, find(run, '\0', 1, true) - 1)
      end
    end
  end
  spread('ZREM', HELD, gone)
  forget_empty(tags)
  for _, range in ipairs(ranges(tag)) do
    left = max(left, #redis.call('ZRANGEBYLEX', HELD, range[1], range[2], 'LIMIT', 0, 1))
  end
  return removed, records, left
end

if history == 0 and not ARGV[5] then
  local removed, records, left = remove_whole()
  if records > 0 then
    return { removed, left }
  end
end

local found, more = selection(tag, 5)
local kept = examine(found)
local ids = kept.ids

if history > 0 then
  drain()
  local texts = documents(HASH, ids)
  more = more or #texts < #ids
  ids = take(ids, #texts)
  remember(kept, texts, history, consumer, outcome)
end

remove(ids, kept.rank)
release(found, from(kept, #ids + 1))
return { weigh(ids), more and 1 or 0 }
