-- Reserve the next ready messages under a tag, CHUNK at a time.
-- ARGV: tag, limit, target (the number of messages that is enough), lease (ms; '' never ends),
-- latest due time (ms), number of messages that earlier calls reserved, most bytes ('': any number),
-- number of bytes that earlier calls reserved, 1 if the first record may exceed the bytes, else 0.
-- Return {messages reserved by all calls, state, bytes reserved by all calls, id}. The states:
-- * 'more': call again.
-- * 'done'.
-- * 'held': the tag already holds messages.
-- * 'large': the bucket `id` exceeds the limit.
-- * 'full': the next record exceeds the bytes. It is the bucket `id`, if that is the first.

local tag, limit, target, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local last_due, taken = tonumber(ARGV[5]), tonumber(ARGV[6])
local max_bytes, bytes, first_fits = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local now = now_ms()
allow_when_full()

local is_first = taken == 0
while is_first do
  local found, all = read_held(tag, '', RUN)
  local kept = check_held(found)
  if #kept.ids > 0 then
    return { 0, 'held', 0 }
  end
  remove_from_held(found) -- keuss took these messages after the lease had ended
  if all then
    break
  end
end
if not sweep_expired_leases(now) then
  return { taken, 'more', bytes }
end

local lease_end
if is_first then
  lease_end = new_lease_end(lease)
else
  lease_end = redis.call('ZSCORE', LEASES, tag) -- a renewal may have changed it between two calls
  if not lease_end then
    return { 0, 'done', 0 } -- the lease ended between two calls
  end
end

-- A score up to `now` is that of a free message: expired leases were swept, and others end later.
local last_moment, step = min(now, last_due), min(target - taken, CHUNK)
local latest = due_by(last_moment)

-- Return whether one of these ids may be odd. To search all ids in one text takes a third of the
-- time. The search begins after the head of that text, 1 or 3 bytes. It also finds a NUL for each id
-- of 32 bytes or more.
local function may_have_odd_ids(ids)
  local text, first = cmsgpack.pack(ids), #ids < 16 and 2 or 4
  return find(text, '\0', first, true) or find(text, '\255', first, true) or redis.call('ZSCORE', INDEX, '')
end

-- Rename ids of other programs that a run cannot contain. Return whether there were any.
local function rename_odd_ids(ids)
  local any = false
  for _, id in ipairs(ids) do
    if is_odd(id) then
      local name = new_name(id, function(name) return redis.call('ZSCORE', INDEX, name) end)
      redis.call('ZADD', INDEX, redis.call('ZSCORE', INDEX, id), name)
      redis.call('HSET', HASH, name, redis.call('HGET', HASH, id) or '')
      redis.call('ZREM', INDEX, id)
      redis.call('HDEL', HASH, id)
      any = true
    end
  end
  return any
end

-- Return whether a record fits, and add its bytes if it does. The first one of all calls may be larger.
-- A bucket with several messages can be split instead.
local function fits(id, size)
  size = bytes_of(id, size)
  if bytes + size > max_bytes and (bytes > 0 or not first_fits or rows_of(id) > 1) then
    return false
  end
  bytes = bytes + size
  return true
end

-- Return the ids of the next free messages, and their scores, or one score that all of them have.
local function read_free()
  local score = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local alike = score and redis.call('ZCOUNT', INDEX, score, score)
  if not score or alike >= step or alike == redis.call('ZCOUNT', INDEX, '-inf', latest) then
    return redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'LIMIT', 0, step), {}, score
  end
  local ids, scores, n = {}, {}, 0
  local found = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, step)
  for i = 1, #found, 2 do
    n = n + 1
    ids[n], scores[n] = found[i], found[i + 1]
  end
  return ids, scores, score
end

local free, scores, score, more, full
if lists then
  free, scores, more, full = lists.claim(tag, step, last_moment, now, max_bytes and fits)
else
  repeat
    free, scores, score = read_free()
  until not (#free > 0 and may_have_odd_ids(free) and rename_odd_ids(free))
  more = #free == CHUNK
end
if #free == 0 then
  return { taken, full and 'full' or 'done', bytes }
end
score = scores[1] or score
if scores[#free] == score then
  scores = {}
end
local index, large = {}, nil

-- Hold a run of messages that are due then (ms). `text`: what follows the due time. `first` and
-- `last`: the first and the last message in the same form.
local function hold(ms, text, first, last)
  local head = run_head(tag, ms)
  if is_first then
    redis.call('ZADD', HELD, 0, head .. text)
  else
    add_to_held(head .. text, head .. first, head .. last)
  end
end

local first_mixed, no_buckets = 1, redis.call('EXISTS', BUCKETS) == 0
if no_buckets and not scores[1] then -- all have one score, and none is a bucket
  local n = min(#free, target - taken, limit - taken)
  for i = 1, max_bytes and not lists and n or 0 do
    if not fits(free[i], redis.call('HSTRLEN', HASH, free[i])) then
      n, full = i - 1, true
      break
    end
  end
  for i = 1, n do
    index[2 * i - 1], index[2 * i] = lease_end, free[i]
  end
  local ms, mark = split_score(tonumber(score))
  for i = 1, n, RUN do
    local last = min(i + RUN - 1, n)
    hold(ms, marked(mark, concat(free, '\0', i, last)), marked(mark, free[i]), marked(mark, free[last]))
  end
  taken, first_mixed = taken + n, #free + 1
end

-- The messages from there on become runs. Of the current one: its ids with the marks of their
-- parts, their number, its due time (ms), its first message, and the mark of the last one.
local pieces, size, due, first, mark = {}, 0, nil, nil, nil
local previous

local function close_run(last_id)
  if size > 0 then
    hold(due, concat(pieces, '\0'), first, marked(mark, last_id))
    pieces, size = {}, 0
  end
end

for i = first_mixed, #free do
  local id = free[i]
  if taken >= target then
    break
  end
  local rows = no_buckets and 1 or rows_of(id)
  if taken + rows > limit then
    large = id
    break
  end
  if max_bytes and not lists and not fits(id, redis.call('HSTRLEN', HASH, id)) then
    full, large = true, taken == 0 and rows > 1 and id
    break
  end
  taken = taken + rows
  score = scores[i] or score
  local ms, parts = due, mark
  if score ~= previous then
    ms, parts = split_score(tonumber(score))
    previous = score
  end
  if ms ~= due or size >= RUN then
    close_run(free[i - 1])
  end
  if size == 0 or parts ~= mark then
    pieces[#pieces + 1] = parts
  end
  due, mark = ms, parts
  pieces[#pieces + 1] = id
  size = size + 1
  if size == 1 then
    first = marked(mark, id)
  end
  index[2 * i - 1], index[2 * i] = lease_end, id
end
close_run(index[#index])
if #index > 0 then
  redis.call('ZADD', LEASES, lease_end, tag)
end
call_many('ZADD', INDEX, index)
if full or large then
  return { taken, full and 'full' or 'large', bytes, large or nil }
end
return { taken, (taken < target and more) and 'more' or 'done', bytes }
