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
local free = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'LIMIT', 0, most)
if #free == 0 then
  return { taken, 'done' }
end
local score, scores = redis.call('ZSCORE', INDEX, free[1]), {}
if redis.call('ZSCORE', INDEX, free[#free]) ~= score then -- not all were pushed at once
  for i, one in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, most)) do
    if i % 2 == 0 then
      scores[i / 2] = one
    end
  end
end
local ids, index, large, run, last = {}, {}, nil, 1, nil

-- Holds ids[run] up to the last one so far, which have the score `last`.
local function close_run()
  if #ids >= run then
    local start = tag .. '\0' .. format('%015d', max(0, tonumber(last))) .. '\0'
    if first then
      redis.call('ZADD', HELD, 0, start .. concat(ids, '\0', run, #ids))
    else
      hold(start, ids, run, #ids)
    end
    run = #ids + 1
  end
end

for i, id in ipairs(free) do
  score = scores[i] or score
  if taken >= enough then
    break
  end
  local rows = rows_of(id)
  if taken + rows > limit then
    large = id
    break
  end
  taken = taken + rows
  if score ~= last or #ids - run + 1 >= RUN then
    close_run()
    last = score
  end
  ids[#ids + 1] = id
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
return { taken, (taken < enough and #free == CHUNK) and 'more' or 'done' }
