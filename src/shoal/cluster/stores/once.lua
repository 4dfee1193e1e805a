-- A client asks for one thing after the other and counts what it asks for: ARGV begins with the client and the count.
-- The answer to its last request is kept (`REPLIES`), so that one that is sent again gets the same answer and changes
-- nothing; an older one comes too late for anybody. Requests that may be carried out several times count as 0.

local client, sequence = ARGV[1], tonumber(ARGV[2])

-- The answer to a request that was carried out already; nil if it is new.
local function earlier_answer()
  if sequence == 0 then
    return nil
  end
  local kept = redis.call('HGET', REPLIES, client)
  local last = kept and struct.unpack('<i8', kept) or 0
  if sequence == last then
    return string.sub(kept, 9)
  end
  return sequence < last and '' or nil
end

local function keep_answer(packed)
  if sequence > 0 then
    redis.call('HSET', REPLIES, client, struct.pack('<i8', sequence) .. packed)
  end
  return packed
end
