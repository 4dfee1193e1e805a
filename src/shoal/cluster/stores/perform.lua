-- Carries out one operation, once: the end of every script about a run. ARGV: client, sequence, whether there are files,
-- operation, what it is given, then what it may add to the log. Whoever changes something is told in the end of the
-- answer how many tasks are left and how many are ready.

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
