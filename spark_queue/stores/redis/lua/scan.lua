-- Return the next records of a queue after a place, in the order of their scores and ids. A held
-- record has the score that it had while it was free. Changes nothing.
-- ARGV: the place (score, '' for the first; id), number of messages, 'messages' or 'history'.
-- Return {score, id, score, id, … of free records}, {runs that are held}, {score, id, …}. Each pair
-- of the last list is a place up to which all records of one kind are returned.
-- The history is in the order in which its entries expire: its records are in the first list.

local score, id, rows = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Return the rank of the first member of a sorted set after the place.
local function first_rank(key)
  if score == '' then
    return 0
  end
  local low, high = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = floor((low + high) / 2)
    if is_before(id, redis.call('ZRANGE', key, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Return members after the place with their scores: about as many as hold `rows` messages, and none
-- from the first on whose score is among `stops`. Also return up to which place these are all.
local function members_after(key, first, stops)
  local page = redis.call('ZRANGE', key, first, first + rows - 1, 'WITHSCORES')
  local found, messages = {}, 0
  for i = 1, #page, 2 do
    if stops[page[i + 1]] then
      return found, { page[i + 1], '' }
    end
    found[i], found[i + 1] = page[i + 1], page[i]
    messages = messages + rows_of(page[i])
    if messages >= rows then
      return found, { page[i + 1], page[i] }
    end
  end
  return found, {}
end

if ARGV[4] == 'history' then
  local live = redis.call('ZCOUNT', PROCESSED, '-inf', digits(now_ms()))
  local found, last = members_after(PROCESSED, max(live, first_rank(PROCESSED)), {})
  return { found, {}, last }
end

local ends, tags, seen, leases = {}, {}, {}, redis.call('ZRANGE', LEASES, 0, -1, 'WITHSCORES')
for i = 1, #leases, 2 do
  local tag = string.match(leases[i], '^[^%z]*') -- a lease that is being renewed has two ends
  ends[leases[i + 1]] = true
  if not seen[tag] then
    seen[tag], tags[#tags + 1] = true, tag
  end
end
local free, known = members_after(INDEX, first_rank(INDEX), ends)
local runs, share = {}, math.ceil(rows / max(1, #tags))
local place_ms, place_mark = split_score(tonumber(score) or 0)
for _, tag in ipairs(tags) do
  local last = score == '' and '' or run_head(tag, place_ms) .. marked(place_mark, id)
  local messages = last == '' and new_messages() or rest_of_run(last)
  local more, all = read_held(tag, last, share)
  for _, run in ipairs(as_runs(more)) do
    add_run(messages, run)
  end
  if not all then
    local n = #messages.ids
    known[#known + 1], known[#known + 2] = score_text(tonumber(score_of(messages, n))), messages.ids[n]
  end
  for _, run in ipairs(as_runs((check_held(messages)))) do
    runs[#runs + 1] = run
  end
end
return { free, runs, known }
