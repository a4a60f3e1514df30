-- Frees what ended leases hold, CHUNK at a time. ARGV: the last moment at which messages may be due.
-- Gives {whether all is swept, how many messages are ready}.

local now = clock()
local swept = sweep(now)
return { swept and 1 or 0, redis.call('ZCOUNT', INDEX, '-inf', digits(min(now, tonumber(ARGV[1])))) }
