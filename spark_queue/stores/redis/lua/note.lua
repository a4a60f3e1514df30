-- Write the note KEYS[1] if it still has this version. Return 1 if it had, else 0.
-- ARGV: value (JSON; '' removes the note), version (0: the note does not exist yet).

local value, version = ARGV[1], tonumber(ARGV[2])
if (tonumber(redis.call('HGET', KEYS[1], 'version')) or 0) ~= version then
  return 0
end
redis.call('HDEL', KEYS[1], '') -- as allow_when_full() does: notes are small, and consumers write some
if value == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'value', value, 'version', digits(version + 1), 'written', digits(now_ms()))
end
return 1
