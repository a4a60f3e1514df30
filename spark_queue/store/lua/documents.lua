-- The documents of some ids, in their order, until BYTES of them are read. ARGV: 'messages' or 'history', ids…

local ids = {}
for i = 2, #ARGV do
  ids[i - 1] = ARGV[i]
end
return documents(ARGV[1] == 'history' and HISTORY or HASH, ids)
