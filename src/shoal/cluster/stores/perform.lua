-- Carries out one operation exactly once: the last part of every script on a run. ARGV: client, sequence, whether files
-- are tracked, operation, its arguments, then its log entries. The reply to an operation that changes something ends
-- with the numbers of unfinished and ready tasks.

local earlier = earlier_answer()
if earlier then
  return earlier
end
local counts = redis.call('HMGET', COUNTS, 'left', 'ready')
if not counts[1] then
  return redis.error_reply('NORUN this run is not in the store')
end
local answer = {}
operations[ARGV[4]](cmsgpack.unpack(ARGV[5]), answer)
write_all()
if sequence > 0 then
  answer[#answer + 1] = counts[1] + left
  answer[#answer + 1] = counts[2] + ready_count
end
return keep_answer(cmsgpack.pack(answer))
