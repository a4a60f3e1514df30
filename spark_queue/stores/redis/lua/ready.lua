-- Frees what ended leases hold, CHUNK at a time. ARGV: the last moment at which messages may be due.
-- Gives {whether all is swept, how many messages are ready}.

local now = clock()
local swept = sweep(now)
local last = min(now, tonumber(ARGV[1]))
local ready = redis.call('ZCOUNT', INDEX, '-inf', digits(last)) + more_by(last)
return { swept and 1 or 0, ready + (lists and lists.count() or 0) } -- of a list, all: a few may be due later
