-- Exactly-once execution of requests. ARGV begins with the client and a sequence number; a client has one request in
-- flight at a time. The reply to its last request is kept (`REPLIES`), so a request that is repeated after a lost
-- connection gets the same reply and changes nothing. An older request is outdated: its client no longer waits for the
-- reply. Idempotent requests have sequence 0.

local client, sequence = ARGV[1], tonumber(ARGV[2])

-- The kept reply to a repeated request; nil if the request is new.
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
