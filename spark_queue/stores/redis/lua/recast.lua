-- Replace records by others that contain the same messages. All of them must still exist: held by
-- the tag, or free. The ids of the new ones must be free. Return 1 if they were replaced, else 0.
-- ARGV: tag ('' if they are free), number of arguments of the new records, id, due, document; …,
-- the old records as runs of one message…

local tag, n = ARGV[1], tonumber(ARGV[2])
local old, rows = (select_messages('', n + 3)), {}
local kept = check_held(old)
if #kept.ids < #ARGV - n - 2 then
  return 0
end
-- The new ones take the place of the first old one, and what a bucket has more of: see score_after().
local due, place = due_of(kept, 1), tonumber(tag == '' and kept.ends[1] or score_of(kept, 1))
local scores, replaced, seen = {}, {}, {}
for i = 1, n, 3 do
  place = i > 1 and score_after(place, ARGV[i - 1], ARGV[i + 2]) or place
  scores[i] = ARGV[i + 3] == due and place or tonumber(ARGV[i + 3])
end
for _, id in ipairs(kept.ids) do
  replaced[id] = true
end
for i = 1, n do
  rows[i] = ARGV[i + 2]
  if i % 3 == 1 then
    if seen[rows[i]] or (not replaced[rows[i]] and redis.call('ZSCORE', INDEX, rows[i])) then
      return 0
    end
    seen[rows[i]] = true
  end
end
allow_when_full()
remove_records(kept.ids)
if tag == '' then
  local push_rows, k, messages = {}, n / 3, 0
  for i = 1, n, 3 do
    local offset = 2 * (i - 1) / 3
    messages = messages + rows_of(rows[i])
    push_rows[offset + 2], push_rows[offset + 3] = score_text(scores[i]), rows[i]
    push_rows[2 * k + offset + 2], push_rows[2 * k + offset + 3] = rows[i], rows[i + 2]
  end
  push_rows[1] = messages
  push(push_rows, false, true)
  return 1
end
local current, leaving = lease_ends(tag)
local lease_end = current or leaving -- during a renewal the new end: the renewal may have passed this message already
local index, hash, ids = {}, {}, {}
call_many('ZREM', HELD, old.runs)
for i = 1, n, 3 do
  local id, document = rows[i], rows[i + 2]
  ids[#ids + 1] = id
  index[#index + 1], index[#index + 2] = lease_end, id
  hash[#hash + 1], hash[#hash + 2] = id, document
  local ms, mark = split_score(scores[i])
  local run = run_head(tag, ms) .. marked(mark, id)
  add_to_held(run, run, run)
end
call_many('HSET', HASH, hash)
call_many('ZADD', INDEX, index)
register_buckets(BUCKETS, ids)
return 1
