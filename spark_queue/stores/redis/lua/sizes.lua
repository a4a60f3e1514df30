-- Return {now, ready, scheduled, reserved, more_buckets, more_leases, first}. `more_…`: 1 if there
-- are more of them than were counted, else 0. `first` is when the first message of the list is due;
-- in other layouts, or if the list is empty, the lowest score of the index. It is nil if there is none.
-- ARGV: the number of buckets, and of leases, to count at most; 0 for all.

local now = now_ms()
local last = tonumber(ARGV[1]) - 1
local ready = redis.call('ZCOUNT', INDEX, '-inf', digits(now))
local later = redis.call('ZCARD', INDEX) - ready
local reserved = 0
local leases =
  redis.call('ZRANGEBYSCORE', LEASES, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', 0, last < 0 and -1 or last + 1)
local ends = {}
for i = 2, #leases, 2 do
  if not ends[leases[i]] then
    ends[leases[i]] = true
    reserved = reserved + redis.call('ZCOUNT', INDEX, leases[i], leases[i])
  end
end
local found = redis.call('ZRANGE', BUCKETS, 0, last)
for i, score in ipairs(query_many('ZMSCORE', INDEX, found)) do
  if score then
    local more = rows_of(found[i]) - 1
    if tonumber(score) <= now then
      ready = ready + more
    else
      later = later + more
      reserved = reserved + (ends[score] and more or 0)
    end
  end
end
local first = redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2]
local more_buckets = redis.call('ZCARD', BUCKETS) > #found and 1 or 0
local more_leases = last >= 0 and #leases > 2 * last and 1 or 0
if lists then
  local others, next_one = lists.count_others(reserved)
  return { now, ready + lists.count(), later - reserved, reserved + others, more_buckets, more_leases, next_one or first }
end
return { now, ready, later - reserved, reserved, more_buckets, more_leases, first }
