-- Takes the next ready messages under a tag, CHUNK at a time.
-- ARGV: tag, limit, how many are enough, lease (ms; '' never ends), the last moment at which they may be due, how many
-- earlier calls took
-- Gives {how many are taken now, what next, id}: 'more' to be called again, 'done', 'held' where the tag holds some
-- messages already, or 'large' where the bucket of that id holds more than the limit leaves.

local tag, limit, enough, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local before, taken = tonumber(ARGV[5]), tonumber(ARGV[6])
local now = clock()
drain()

if taken == 0 then
  while true do
    local members = own(tag, '', 100)
    local kept, lost = examine(members)
    if #kept > 0 then
      return { 0, 'held' }
    elseif #members == 0 then
      break
    end
    release(lost) -- keuss took them after the lease had ended
  end
end
if not sweep(now) then
  return { taken, 'more' }
end

local till
if taken == 0 then
  till = end_of(lease)
else
  till = redis.call('ZSCORE', LEASES, tag) -- a renewal may have come in between
  if not till then
    return { 0, 'done' } -- the lease was over before its messages were counted
  end
end

-- what a lease of somebody holds is past now, or was swept
local free = redis.call(
  'ZRANGEBYSCORE', INDEX, '-inf', digits(min(now, before)), 'WITHSCORES', 'LIMIT', 0, min(enough - taken, CHUNK)
)
if #free == 0 then
  return { taken, 'done' }
end
local index, held, last, start, large = {}, {}, nil, nil, nil
for i = 1, #free, 2 do
  local id, score = free[i], free[i + 1]
  local rows = rows_of(id)
  if taken >= enough then
    break
  elseif taken + rows > limit then
    large = id
    break
  end
  taken = taken + rows
  if score ~= last then
    last = score
    start = tag .. '\0' .. format('%015d', math.max(0, tonumber(score))) .. '\0'
  end
  index[i], index[i + 1] = till, id
  held[i], held[i + 1] = 0, start .. id
end
if #index > 0 then
  redis.call('ZADD', LEASES, till, tag)
end
spread('ZADD', HELD, held)
spread('ZADD', INDEX, index)
if large then
  return { taken, 'large', large }
end
return { taken, (taken < enough and #free == 2 * CHUNK) and 'more' or 'done' }
