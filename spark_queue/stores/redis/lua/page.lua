-- What a tag holds, in order. ARGV: tag, the message after which to go on, as a run of its own ('' at first), how many.
-- Gives runs of about so many messages, all of them held; none at the end.

local tag, last, rows = ARGV[1], ARGV[2], tonumber(ARGV[3])
local runs, n, seen = {}, 0, 0

-- Adds what of these messages is held still.
local function add_kept(messages)
  local kept = examine(messages)
  for _, run in ipairs(as_runs(kept)) do
    runs[#runs + 1] = run
  end
  n, seen = n + #kept.ids, seen + #messages.ids
end

local low = '[' .. tag .. '\0'
if last ~= '' then
  low = '[' .. last .. '\1'
  -- the run that has it may go on behind it
  local run = redis.call('ZREVRANGEBYLEX', HELD, '(' .. last .. '\1', '[' .. sub(last, 1, #tag + 17), 'LIMIT', 0, 1)[1]
  if run then
    local messages, id, at = some(), sub(last, #tag + 18), 1
    read(messages, run)
    while messages.ids[at] and not before(id, messages.ids[at]) do
      at = at + 1
    end
    add_kept(from(messages, at))
  end
end

while n == 0 or (n < rows and seen < 2 * rows) do
  local step = math.ceil(max(1, rows - n) / RUN)
  local found, others = redis.call('ZRANGEBYLEX', HELD, low, '(' .. tag .. '\1', 'LIMIT', 0, step), some()
  for _, run in ipairs(found) do
    local ids = whole(run)
    if ids then
      add_kept(others)
      others = some()
      runs[#runs + 1] = run
      n, seen = n + #ids, seen + #ids
    else
      read(others, run)
    end
  end
  add_kept(others)
  if #found < step then
    break
  end
  low = '(' .. found[#found]
end
return runs
