-- Return those of the given messages that have at least `min_tries` tries. Change no message.
-- ARGV: min_tries, runs…
-- Return {messages, the message after which to continue ('' if all were checked)}. Each message is
-- a run of one message.

local min_tries = tonumber(ARGV[1])
local named = select_messages('', 2)
local found = read_documents(HASH, named.ids)

-- Return the tries of a document. Parse it only if the payload may have such a field too.
local function tries_of(document)
  local _, at, tries
  if #document <= WINDOW then
    _, at, tries = find(document, '"tries":(%d+)')
  end
  if at and not find(document, '"tries"', at, true) then
    return tonumber(tries)
  end
  local parts = parse_document(document)
  return parts and parts.tries or 0
end

local exhausted = {}
for i, document in ipairs(found) do
  if document and tries_of(document) >= min_tries then
    exhausted[#exhausted + 1] = single_run(named, i)
  end
end
return { exhausted, #found < #named.ids and single_run(named, #found) or '' }
