-- Return the messages that a tag holds, in order: runs of about the given number of messages, all
-- still held. Return none at the end.
-- ARGV: tag, the message after which to begin, as a run of one message ('' for the first page),
-- number of messages.

local tag, last, rows = ARGV[1], ARGV[2], tonumber(ARGV[3])
local runs, n, seen = {}, 0, 0

-- Add those of these messages that are still held.
local function add_held(messages)
  local kept = check_held(messages)
  for _, run in ipairs(as_runs(kept)) do
    runs[#runs + 1] = run
  end
  n, seen = n + #kept.ids, seen + #messages.ids
end

local low = '[' .. tag .. '\0'
if last ~= '' then
  low = '[' .. last .. '\1'
  -- the run of that message may have more messages after it
  local run = run_before(last)
  if run then
    local messages = new_messages()
    add_run(messages, run)
    add_held(messages_from(messages, first_after(messages, last)))
  end
end

while n == 0 or (n < rows and seen < 2 * rows) do
  local step = math.ceil(max(1, rows - n) / RUN)
  local found, unchecked = redis.call('ZRANGEBYLEX', HELD, low, '(' .. tag .. '\1', 'LIMIT', 0, step), new_messages()
  for _, run in ipairs(found) do
    local ids = find_whole_run(run)
    if ids then
      add_held(unchecked)
      unchecked = new_messages()
      runs[#runs + 1] = run
      n, seen = n + #ids, seen + #ids
    else
      add_run(unchecked, run)
    end
  end
  add_held(unchecked)
  if #found < step then
    break
  end
  low = '(' .. found[#found]
end
return runs
