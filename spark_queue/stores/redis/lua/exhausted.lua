-- Of the named messages, those that have failed so often: each as a run of its own. It changes nothing.
-- ARGV: min_tries, messages…
-- Gives {messages, the one after which to go on ('' where all are seen)}.

local least = tonumber(ARGV[1])
local named = selection('', 2)
local found = documents(HASH, named.ids)

-- A document is taken apart only where a payload may have such a field, too.
local function tries_of(document)
  local _, at, tries = find(document, '"tries":(%d+)')
  if at and not find(document, '"tries"', at, true) then
    return tonumber(tries)
  end
  local parts = open(document)
  return parts and parts.tries or 0
end

local told = {}
for i, document in ipairs(found) do
  if document and tries_of(document) >= least then
    told[#told + 1] = single(named, i)
  end
end
return { told, #found < #named.ids and single(named, #found) or '' }
