-- Writes the chunk KEYS[8], unless it is there or is over. ARGV: as of push.lua.

redis.call('SET', KEYS[8], ARGV[1], 'NX')
