-- Removes the chunk KEYS[8]; gives whether it had rows.

local bytes = redis.call('STRLEN', KEYS[8])
finish(KEYS[8])
return bytes > 0 and 1 or 0
