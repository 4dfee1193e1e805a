-- Carries out one operation, once: the end of every script. ARGV: client, sequence, whether there are files, operation,
-- what it is given.
--
-- A client asks for one thing after the other and counts what it asks for. The answer to the last one is kept, so that
-- one that is asked for again gets the same answer and changes nothing; an older one comes too late for anybody.

local client, sequence = ARGV[1], tonumber(ARGV[2])
if sequence > 0 then
  local kept = redis.call('HGET', REPLIES, client)
  local last = kept and struct.unpack('<i8', kept) or 0
  if sequence == last then
    return string.sub(kept, 9)
  elseif sequence < last then
    return ''
  end
end
if redis.call('EXISTS', COUNTS) == 0 then
  return redis.error_reply('NORUN this run is not in the store')
end
local answer = {}
operations[ARGV[4]](cmsgpack.unpack(ARGV[5]), answer)
write_all()
local packed = cmsgpack.pack(answer)
if sequence > 0 then
  redis.call('HSET', REPLIES, client, struct.pack('<i8', sequence) .. packed)
end
return packed
