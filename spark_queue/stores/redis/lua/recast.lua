-- Replaces records by others that hold the same messages, if all of them are there still: held by the tag, or free.
-- ARGV: tag ('' for free ones), how many arguments the new ones are, id, due, document; …, the old ones, each as a
-- run of its own…
-- Gives whether it was done.

local tag, n = ARGV[1], tonumber(ARGV[2])
local old, rows = (selection('', n + 3)), {}
local kept = examine(old)
if #kept.ids < #ARGV - n - 2 then
  return 0
end
for i = 1, n do
  rows[i] = ARGV[i + 2]
end
drain()
remove(kept.ids)
if tag == '' then
  local all, k, messages = {}, n / 3, 0
  for i = 1, n, 3 do
    local at = 2 * (i - 1) / 3
    messages = messages + rows_of(rows[i])
    all[at + 2], all[at + 3] = rows[i + 1], rows[i]
    all[2 * k + at + 2], all[2 * k + at + 3] = rows[i], rows[i + 2]
  end
  all[1] = messages
  push(all)
  return 1
end
local current, leaving = ends(tag)
local till = current or leaving -- that of a renewal which is under way: it may have passed by already
local index, hash, ids = {}, {}, {}
spread('ZREM', HELD, old.runs)
for i = 1, n, 3 do
  local id, due, document = rows[i], tonumber(rows[i + 1]), rows[i + 2]
  ids[#ids + 1] = id
  index[#index + 1], index[#index + 2] = till, id
  hash[#hash + 1], hash[#hash + 2] = id, document
  hold(tag .. '\0' .. format('%015d', due) .. '\0', ids, #ids, #ids)
end
spread('HSET', HASH, hash)
spread('ZADD', INDEX, index)
enlist(BUCKETS, ids)
return 1
