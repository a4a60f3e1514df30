-- Pushes messages whose ids the queue does not hold yet; gives their number.
-- ARGV: id, due (ms), document; id, due, document; …

return push(ARGV)
