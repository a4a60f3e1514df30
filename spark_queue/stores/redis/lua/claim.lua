-- Takes the next ready messages under a tag, CHUNK at a time.
-- ARGV: tag, limit, how many are enough, lease (ms; '' never ends), the last moment at which they may be due, how many
-- earlier calls took
-- Gives {how many are taken now, what next, id}: 'more' to be called again, 'done', 'held' where the tag holds some
-- messages already, or 'large' where the bucket of that id holds more than the limit leaves.

local tag, limit, enough, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local last_due, taken = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = clock()
drain()

local first = taken == 0
while first do
  local found, all = own(tag, '', RUN)
  local kept = examine(found)
  if #kept.ids > 0 then
    return { 0, 'held' }
  end
  release(found) -- keuss took them after the lease had ended
  if all then
    break
  end
end
if not sweep(now) then
  return { taken, 'more' }
end

local till
if first then
  till = end_of(lease)
else
  till = redis.call('ZSCORE', LEASES, tag) -- a renewal may have come in between
  if not till then
    return { 0, 'done' } -- the lease was over before its messages were counted
  end
end

-- what a lease of somebody holds is past now, or was swept
local latest, most = digits(min(now, last_due)), min(enough - taken, CHUNK)

-- Whether one of these ids may be such that no run can name it. All of them in one text tell it in a third of the time
-- of a look at each; behind its head of 1 or 3 bytes it has NUL for ids from 32 bytes on, too.
local function may_be_odd(ids)
  return find(cmsgpack.pack(ids), '\0', #ids < 16 and 2 or 4, true) or redis.call('ZSCORE', INDEX, '')
end

-- Gives those of these ids other names that no run can name, which other programs have made; gives whether there were any.
local function rename(ids)
  local any = false
  for _, id in ipairs(ids) do
    if id == '' or find(id, '\0', 1, true) then
      local name = id == '' and '""' or (string.gsub(id, '%z', '\\0'))
      while redis.call('ZSCORE', INDEX, name) do
        name = name .. "'"
      end
      redis.call('ZADD', INDEX, redis.call('ZSCORE', INDEX, id), name)
      redis.call('HSET', HASH, name, redis.call('HGET', HASH, id) or '')
      redis.call('ZREM', INDEX, id)
      redis.call('HDEL', HASH, id)
      any = true
    end
  end
  return any
end

local free, scores, more
if lists then
  free, scores, more = lists.claim(tag, most, tonumber(latest), now)
else
  repeat
    free = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'LIMIT', 0, most)
  until not (#free > 0 and may_be_odd(free) and rename(free))
  scores, more = {}, #free == CHUNK
end
if #free == 0 then
  return { taken, 'done' }
end
local score = scores[1] or redis.call('ZSCORE', INDEX, free[1])
if scores[#free] == score then
  scores = {}
elseif not lists and redis.call('ZSCORE', INDEX, free[#free]) ~= score then -- not all were pushed at once
  for i, one in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, most)) do
    if i % 2 == 0 then
      scores[i / 2] = one
    end
  end
end
local index, large, run, held, last = {}, nil, 1, 0, score

-- Holds free[run] up to free[held], which have the score `last`.
local function close_run()
  if held >= run then
    local start = tag .. '\0' .. format('%015d', max(0, tonumber(last))) .. '\0'
    if first then
      redis.call('ZADD', HELD, 0, start .. concat(free, '\0', run, held))
    else
      hold(start, free, run, held)
    end
    run = held + 1
  end
end

local first_mixed = 1
if not scores[1] and redis.call('EXISTS', BUCKETS) == 0 then -- all are alike
  local n = min(#free, enough - taken, limit - taken)
  for i = 1, n do
    index[2 * i - 1], index[2 * i] = till, free[i]
  end
  for last_of_run = RUN, n, RUN do
    held = last_of_run
    close_run()
  end
  held, taken, first_mixed = n, taken + n, #free + 1
end
for i = first_mixed, #free do
  local id = free[i]
  if taken >= enough then
    break
  end
  local rows = rows_of(id)
  if taken + rows > limit then
    large = id
    break
  end
  taken = taken + rows
  score = scores[i] or score
  if score ~= last or i - run >= RUN then
    close_run()
    last = score
  end
  held = i
  index[2 * i - 1], index[2 * i] = till, id
end
close_run()
if #index > 0 then
  redis.call('ZADD', LEASES, till, tag)
end
spread('ZADD', INDEX, index)
if large then
  return { taken, 'large', large }
end
return { taken, (taken < enough and more) and 'more' or 'done' }
