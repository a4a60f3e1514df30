-- Free the messages of expired leases, CHUNK at a time.
-- ARGV: latest due time (ms) of the messages to count.
-- Return {1 if no expired lease is left, number of ready messages}.

local now = now_ms()
local swept = sweep_expired_leases(now)
local last = min(now, tonumber(ARGV[1]))
local ready = redis.call('ZCOUNT', INDEX, '-inf', due_by(last)) + count_extra_messages(last)
return { swept and 1 or 0, ready + (lists and lists.count() or 0) } -- a few of the list may be due later
