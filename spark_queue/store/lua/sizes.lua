-- Gives {now, ready, scheduled, reserved, the first moment of the index (nil where it is empty)}.

local now = clock()
local ready = redis.call('ZCOUNT', INDEX, '-inf', digits(now))
local later = redis.call('ZCARD', INDEX) - ready
local reserved = 0
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '(' .. digits(now), '+inf')) do
  reserved = reserved + redis.call('ZLEXCOUNT', HELD, '[' .. tag .. '\0', '(' .. tag .. '\1')
end
reserved = min(reserved, later)
return { now, ready, later - reserved, reserved, redis.call('ZRANGE', INDEX, 0, 0, 'WITHSCORES')[2] }
