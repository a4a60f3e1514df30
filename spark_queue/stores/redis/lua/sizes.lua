-- Count the messages of queues, which another client may have changed meanwhile. The keys are those of
-- one queue after the other.
-- Return an answer for each queue: the text of an error, or
-- {now, ready, scheduled, reserved, more_ready, more_scheduled, more_reserved, more_leases, first}.
-- `more_…`: 1 if there are more of them than were counted, else 0. `first` is when the first message
-- of the list is due; in other layouts, or if the list is empty, the lowest score of the index. It is
-- nil if there is none.
-- ARGV: the number of records of each state, and of leases, to look at most; 0 for all. Redis counts
-- records at once, but a bucket has to be looked at. Then the number of keys of a queue.

local now, limit, width = now_ms(), tonumber(ARGV[1]), tonumber(ARGV[2])

local function count()
  local ready = redis.call('ZCOUNT', INDEX, '-inf', due_by(now))
  local scheduled = redis.call('ZCARD', INDEX) - ready
  local reserved = 0
  local leases = redis.call(
    'ZRANGEBYSCORE', LEASES, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, limit == 0 and -1 or limit
  )
  local ends = {} -- how many records each lease end has
  for i = 2, #leases, 2 do
    if not ends[leases[i]] then
      ends[leases[i]] = redis.call('ZCOUNT', INDEX, leases[i], leases[i])
      reserved = reserved + ends[leases[i]]
    end
  end
  scheduled = scheduled - reserved
  local more_leases = limit > 0 and #leases >= 2 * limit and 1 or 0
  local more_ready, more_scheduled, more_reserved = 0, 0, 0

  if limit == 0 then
    local found = redis.call('ZRANGE', BUCKETS, 0, -1)
    for i, score in ipairs(query_many('ZMSCORE', INDEX, found)) do
      if score then
        local more = rows_of(found[i]) - 1
        if floor(tonumber(score)) <= now then
          ready = ready + more
        elseif ends[score] then
          reserved = reserved + more
        else
          scheduled = scheduled + more
        end
      end
    end
  elseif redis.call('EXISTS', BUCKETS) == 1 then
    local found = redis.call('ZRANGEBYSCORE', INDEX, '-inf', due_by(now), 'LIMIT', 0, limit)
    more_ready = ready > #found and 1 or 0
    ready = ready + count_messages(found) - #found
    local left = limit
    for lease_end, records in pairs(ends) do
      found = redis.call('ZRANGEBYSCORE', INDEX, lease_end, lease_end, 'LIMIT', 0, max(left, 0))
      more_reserved = records > #found and 1 or more_reserved
      reserved, left = reserved + count_messages(found) - #found, left - #found
    end
    found = redis.call('ZRANGEBYSCORE', INDEX, digits(now + 1), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #found, 2 do
      if not ends[found[i + 1]] then
        scheduled = scheduled + rows_of(found[i]) - 1
      end
    end
    more_scheduled = #found == 2 * limit and 1 or 0
  end

  local first = redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2]
  if lists then
    local others, next_one = lists.count_others(reserved)
    ready, reserved, first = ready + lists.count(), reserved + others, next_one or first
  end
  return { now, ready, scheduled, reserved, more_ready, more_scheduled, more_reserved, more_leases, first }
end

local answers = {}
for at = 1, #KEYS, width do
  INDEX, HASH, HELD, LEASES, HISTORY, PROCESSED, BUCKETS = unpack(KEYS, at, at + 6)
  if lists then
    lists.use(at + width - 1)
  end
  local done, found = pcall(count)
  answers[#answers + 1] = done and found or (type(found) == 'table' and found.err or tostring(found))
end
return answers
