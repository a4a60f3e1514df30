-- Remove the chunk KEYS[8]. Return 1 if it had rows, else 0.

local bytes = redis.call('STRLEN', KEYS[8])
finish_chunk(KEYS[8])
return bytes > 0 and 1 or 0
