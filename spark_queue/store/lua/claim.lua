-- Takes the next ready messages under a tag, CHUNK at a time.
-- ARGV: tag, limit, lease (ms; '' never ends), the last moment at which they may be due, how many earlier calls took
-- Gives {how many are taken now, what next}: 'more' to be called again, 'done', or 'held' where the tag holds some
-- messages already.

local tag, limit, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local before, taken = tonumber(ARGV[4]), tonumber(ARGV[5])
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
  'ZRANGEBYSCORE', INDEX, '-inf', digits(min(now, before)), 'WITHSCORES', 'LIMIT', 0, min(limit - taken, CHUNK)
)
if #free == 0 then
  return { taken, 'done' }
end
local index, held, last, start = {}, {}, nil, nil
for i = 1, #free, 2 do
  local id, score = free[i], free[i + 1]
  if score ~= last then
    last = score
    start = tag .. '\0' .. format('%015d', math.max(0, tonumber(score))) .. '\0'
  end
  index[i], index[i + 1] = till, id
  held[i], held[i + 1] = 0, start .. id
end
redis.call('ZADD', LEASES, till, tag)
spread('ZADD', HELD, held)
spread('ZADD', INDEX, index)
taken = taken + #free / 2
return { taken, (taken < limit and #free == 2 * CHUNK) and 'more' or 'done' }
