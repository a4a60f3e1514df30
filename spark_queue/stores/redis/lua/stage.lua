-- Write the chunk KEYS[8], unless it exists or was ended. ARGV: as of push.lua.

redis.call('SET', KEYS[8], ARGV[1], 'NX')
