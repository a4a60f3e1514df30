-- Push messages, except for ids that the queue holds already. Return the number of new messages.
-- ARGV: rows in MessagePack; in a layout with lists optionally 'front', to put them before the
-- messages in the list.

return push(cmsgpack.unpack(ARGV[1]), ARGV[2] == 'front')
