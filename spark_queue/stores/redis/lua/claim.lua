-- Reserve the next ready messages under the tags of a claim, CHUNK at a time.
-- ARGV: tag, most messages, lease (ms; '' never ends), latest due time (ms), most bytes ('': any
-- number), most partitions, least partitions, messages for which there is a partition, progress ('' in
-- the first call). One partition has the tag itself, several have `tag/0`, `tag/1`, ….
-- Return {state, progress, bytes reserved, 1 if the bytes are full, id, messages of the first
-- partition, of the second, …}: those that all calls have reserved. The states:
-- * 'more': call again, with this progress.
-- * 'done'.
-- * 'held': the tags hold messages already, or no longer hold some that an earlier call has reserved.
-- * 'large': nothing was reserved. The bucket `id` exceeds a limit.

local tag, limit, lease, last_due = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local max_bytes, partitions, least, smallest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local is_first = ARGV[9] == ''
local now = now_ms()
allow_when_full()

local function tag_of(partition)
  return partitions == 1 and tag or tag .. '/' .. digits(partition - 1)
end

-- Return whether a range of `held` has messages that are still held. Remove the others: keuss took
-- them after the lease had ended.
local function is_held(range)
  while true do
    local found = new_messages()
    local all = scan_runs(found, range[1], range[2], RUN)
    if #check_held(found).ids > 0 then
      return true
    end
    remove_from_held(found)
    if all then
      return false
    end
  end
end

if is_first then
  for i, range in ipairs(tag_ranges(tag)) do
    if (i == 1 or partitions > 1) and is_held(range) then
      return { 'held', '', 0, 0, '' }
    end
  end
end
if not sweep_expired_leases(now) then
  return { 'more', ARGV[9], 0, 0, '' }
end

-- A score up to `now` is that of a free message: expired leases were swept, and others end later.
local last_moment = min(now, last_due)
local latest = due_by(last_moment)

-- --- the partitions: as `Shares` in support/claiming.py ----------------------------------------------------------

-- Return the sizes of partitions that share messages evenly.
local function share_evenly(rows)
  local sizes, parts = {}, min(partitions, max(math.ceil(rows / smallest), min(rows, least)))
  for i = 1, rows > 0 and parts or 0 do
    sizes[i] = floor(rows / parts) + (i <= rows % parts and 1 or 0)
  end
  return sizes
end

local function count_ready()
  return redis.call('ZCOUNT', INDEX, '-inf', latest)
    + count_extra_messages(last_moment)
    + (lists and lists.count() or 0) -- a few of the list may be due later
end

-- What all calls have reserved: `sizes` are the targets of the partitions, `rows` and `bytes` their
-- messages and bytes. `at` is the current partition, and `share` what its bytes may be.
local progress
if is_first then
  local sizes = partitions == 1 and { limit } or share_evenly(min(count_ready(), limit))
  progress = { sizes = sizes, rows = {}, at = 0, total = 0, taken = 0, bytes = 0, full = false }
  for _, size in ipairs(sizes) do
    progress.total = progress.total + size
  end
else
  progress = cmsgpack.unpack(ARGV[9])
end
local sizes, rows, large, ended = progress.sizes, progress.rows, nil, false
local spans = {} -- of the messages of this call: partition, first and last

local function answer(state)
  local full = progress.full and progress.taken < progress.total and 1 or 0
  return { state, state == 'more' and cmsgpack.pack(progress) or '', progress.bytes, full, large or '', unpack(rows) }
end

-- Begin the next partition. Return whether there is one.
local function next_partition()
  if progress.at >= #sizes or progress.taken >= progress.total then
    ended = true
    return false
  end
  progress.share = max_bytes and floor(max(0, max_bytes - progress.bytes) / (partitions - progress.at))
  progress.at = progress.at + 1
  progress.target = min(sizes[progress.at], progress.total - progress.taken)
  progress.size, rows[progress.at] = 0, 0
  return true
end

-- Return the partition that takes the next messages, nil if none does.
local function current_partition()
  if progress.at == 0 or rows[progress.at] >= progress.target then
    next_partition()
  end
  return not ended and progress.at or nil
end

-- Add the next `records` messages or bucket of this call to the current partition.
local function add(records, messages, size)
  local span, at = spans[#spans], progress.at
  if span and span[1] == at then
    span[3] = span[3] + records
  else
    local first = span and span[3] + 1 or 1
    spans[#spans + 1] = { at, first, first + records - 1 }
  end
  rows[at], progress.taken = rows[at] + messages, progress.taken + messages
  progress.size, progress.bytes = progress.size + size, progress.bytes + size
end

-- End the current partition, since the next message exceeds its bytes.
local function end_by_bytes()
  progress.full = true
  if progress.at == #sizes and #sizes < partitions then
    sizes[#sizes + 1] = progress.total - progress.taken
  end
  next_partition()
end

-- Add the next record to the first partition that it fits into. Return whether there is one. The first
-- record of all may exceed the bytes; a bucket with several messages can be split instead.
local function add_record(id, stored)
  local messages, size = rows_of(id), max_bytes and bytes_of(id, stored) or 0
  while current_partition() do
    if progress.taken + messages > progress.total then
      large, ended = progress.taken == 0 and id or nil, true
    elseif max_bytes and progress.size + size > progress.share and (progress.taken > 0 or messages > 1) then
      if progress.taken == 0 then
        large, ended, progress.full = id, true, true
      else
        end_by_bytes()
      end
    else
      add(1, messages, size)
      return true
    end
  end
  return false
end

-- Add the next `n` records, none of which is a bucket, without a limit of bytes.
local function add_messages(n)
  while n > 0 and current_partition() do
    local some = min(n, progress.target - rows[progress.at])
    add(some, some, 0)
    n = n - some
  end
end

-- Add the first of these messages that fit, none of which is a bucket. The same as add_record() for
-- each of them, in less time.
local function add_by_bytes(ids)
  local n, i, call = #ids, 1, redis.call
  while i <= n and current_partition() do
    local size, first, fits = progress.size, i, true
    local last, share = min(n, i - 1 + progress.target - rows[progress.at]), progress.share
    while i <= last do
      local more = call('HSTRLEN', HASH, ids[i])
      if size + more > share and (progress.taken > 0 or i > first) then
        fits = false
        break
      end
      size, i = size + more, i + 1
    end
    if i > first then
      add(i - first, i - first, size - progress.size)
    end
    if not fits then
      end_by_bytes()
    end
  end
end

-- Each partition has a lease of its own. A renewal may have changed it between two calls.
local lease_ends_of = {}
for partition, n in ipairs(rows) do
  if n > 0 then
    lease_ends_of[partition] = redis.call('ZSCORE', LEASES, tag_of(partition))
    if not lease_ends_of[partition] then
      return answer('held') -- it ended between two calls
    end
  end
end

-- --- the messages ------------------------------------------------------------------------------------------------

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

-- Return the ids of the next `limit` free messages, and their scores, or one score that all of them have.
local function read_free(limit)
  local score = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local alike = score and redis.call('ZCOUNT', INDEX, score, score)
  if not score or alike >= limit or alike == redis.call('ZCOUNT', INDEX, '-inf', latest) then
    return redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'LIMIT', 0, limit), {}, score
  end
  local ids, scores, n = {}, {}, 0
  local found = redis.call('ZRANGEBYSCORE', INDEX, '-inf', latest, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #found, 2 do
    n = n + 1
    ids[n], scores[n] = found[i], found[i + 1]
  end
  return ids, scores, score
end

local step, free, scores, score, more = min(progress.total - progress.taken, CHUNK), {}, {}, nil, false
if step > 0 then
  if lists then
    free, scores, more = lists.claim(step, last_moment, now, max_bytes and add_record)
  else
    repeat
      free, scores, score = read_free(step)
    until not (#free > 0 and may_have_odd_ids(free) and rename_odd_ids(free))
    more = #free == CHUNK
  end
end
if #free == 0 then
  return answer(large and 'large' or (more and not ended and 'more') or 'done')
end

if lists and max_bytes then
  more = more and not ended -- they were added one by one
elseif lists or redis.call('EXISTS', BUCKETS) == 0 then
  if max_bytes then
    add_by_bytes(free)
  else
    add_messages(#free)
  end
else
  for _, id in ipairs(free) do
    if not add_record(id, max_bytes and redis.call('HSTRLEN', HASH, id)) then
      break
    end
  end
end

-- Hold a run of messages that are due then (ms) for a tag. `text`: what follows the due time. `first`
-- and `last`: the first and the last message in the same form.
local function hold(name, ms, text, first, last)
  local head = run_head(name, ms)
  if is_first then
    redis.call('ZADD', HELD, 0, head .. text)
  else
    add_to_held(head .. text, head .. first, head .. last)
  end
end

-- Hold free[first] to free[last], all of which have this score, in runs.
local function hold_alike(name, first, last, alike)
  local ms, mark = split_score(tonumber(alike))
  for i = first, last, RUN do
    local stop = min(i + RUN - 1, last)
    hold(name, ms, marked(mark, concat(free, '\0', i, stop)), marked(mark, free[i]), marked(mark, free[stop]))
  end
end

-- Hold free[first] to free[last], which have different scores. Those that are due at one time make runs.
local function hold_mixed(name, first, last)
  -- of the current run: its ids with the marks of their parts, their number, its due time (ms), its
  -- first message, and the mark of the last one
  local pieces, size, due, start, mark = {}, 0, nil, nil, nil
  local previous
  for i = first, last do
    local ms, parts = due, mark
    if scores[i] ~= previous then
      previous = scores[i]
      ms, parts = split_score(tonumber(previous))
    end
    if size > 0 and (ms ~= due or size >= RUN) then
      hold(name, due, concat(pieces, '\0'), start, marked(mark, free[i - 1]))
      pieces, size = {}, 0
    end
    if size == 0 or parts ~= mark then
      pieces[#pieces + 1] = parts
    end
    due, mark = ms, parts
    pieces[#pieces + 1] = free[i]
    size = size + 1
    if size == 1 then
      start = marked(mark, free[i])
    end
  end
  hold(name, due, concat(pieces, '\0'), start, marked(mark, free[last]))
end

local index, n = {}, 0
for _, span in ipairs(spans) do
  local partition, first, last = unpack(span)
  local name, lease_end = tag_of(partition), lease_ends_of[partition] or new_lease_end(lease)
  if lists then
    lists.order(name, free, scores, first, last)
  end
  if scores[first] == scores[last] then -- also if they have none, but one for all
    hold_alike(name, first, last, scores[first] or score)
  else
    hold_mixed(name, first, last)
  end
  for i = first, last do
    index[n + 1], index[n + 2] = lease_end, free[i]
    n = n + 2
  end
  redis.call('ZADD', LEASES, lease_end, name)
end
call_many('ZADD', INDEX, index)
if large then
  return answer('large')
end
return answer((more and not ended and progress.taken < progress.total) and 'more' or 'done')
