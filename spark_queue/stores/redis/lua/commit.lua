-- Remove the messages that a tag and the tags below it hold, or the given ones of them.
-- ARGV: tag, history (ms), consumer, outcome, runs… Return {messages removed, 1 to call again}.

local tag, history, consumer, outcome = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

-- Remove whole runs, if all their messages are still held, about CHUNK messages. Return the number of
-- messages, the number of records, and 1 if runs are left.
local function remove_whole_runs()
  local gone, tags, removed, records = {}, {}, 0, 0
  local no_buckets, left = redis.call('EXISTS', BUCKETS) == 0, 0
  for _, range in ipairs(tag_ranges(tag)) do
    local found = redis.call('ZRANGEBYLEX', HELD, range[1], range[2], 'LIMIT', 0, math.ceil(CHUNK / RUN))
    for _, run in ipairs(found) do
      local ids, rank = find_whole_run(run)
      if ids and records < CHUNK then
        remove_records(ids, rank, no_buckets)
        removed, records = removed + (no_buckets and #ids or count_messages(ids)), records + #ids
        gone[#gone + 1], tags[#tags + 1] = run, sub(run, 1, find(run, '\0', 1, true) - 1)
      end
    end
  end
  call_many('ZREM', HELD, gone)
  remove_empty_leases(tags)
  for _, range in ipairs(tag_ranges(tag)) do
    left = max(left, #redis.call('ZRANGEBYLEX', HELD, range[1], range[2], 'LIMIT', 0, 1))
  end
  return removed, records, left
end

if history == 0 and not ARGV[5] then
  local removed, records, left = remove_whole_runs()
  if records > 0 then
    return { removed, left }
  end
end

local found, more = select_messages(tag, 5)
local kept = check_held(found)
local ids = kept.ids

if history > 0 then
  allow_when_full()
  local texts = read_documents(HASH, ids)
  more = more or #texts < #ids
  ids = first_items(ids, #texts)
  write_history(kept, texts, history, consumer, outcome)
end

remove_records(ids, kept.rank)
remove_from_held(found, messages_from(kept, #ids + 1))
return { count_messages(ids), more and 1 or 0 }
