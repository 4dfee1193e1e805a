-- The directory of a cluster in Redis: operations on nodes and runs, loaded after `once.lua`. ARGV: client, sequence,
-- operation, arguments. Every reply is a list of integers.
--
-- A run is one value: number in the order of submission, state, length of the outcome, outcome, description. Read-only
-- operations (`nodes`, `runs`) need no script.

local WAITING, ACTIVE, ENDED = 0, 1, 2
local RUN, RUN_BYTES = '<i8BI4', 13
local call = redis.call

local function milliseconds()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function is_there(number)
  return call('HEXISTS', NODES, number) == 1
end

-- Incarnation of the node with this number; nil if there is none.
local function incarnation_of(number)
  local info = call('HGET', NODES, number)
  return info and (cmsgpack.unpack(info).incarnation or '')
end

local function read_run(run)
  local text = call('HGET', RUNS, run)
  if not text then
    return nil
  end
  local serial, state, length = struct.unpack(RUN, text)
  return { serial = serial, state = state, about = string.sub(text, RUN_BYTES + length + 1) }
end

local function write_run(run, found, outcome)
  call('HSET', RUNS, run, struct.pack(RUN, found.serial, found.state, #outcome) .. outcome .. found.about)
  call('HINCRBY', COUNTS, 'runs_version', 1)
end

local operations = {}

-- ARGV: info, lease in milliseconds, a lower bound (exclusive) of the new number
function operations.join(answer, info, lease, above)
  local number = math.max(tonumber(call('HGET', COUNTS, 'nodes') or 0), tonumber(above) + 1)
  call('HSET', COUNTS, 'nodes', number + 1)
  call('HSET', NODES, number, info)
  call('ZADD', LEASES, milliseconds() + lease, number)
  call('HINCRBY', COUNTS, 'nodes_version', 1)
  answer[1] = number
end

-- ARGV: number, lease in milliseconds, status (empty: none), incarnation
function operations.renew(answer, number, lease, note, incarnation)
  local versions = call('HMGET', COUNTS, 'nodes_version', 'runs_version')
  answer[1] = 0
  if incarnation_of(number) == incarnation then
    call('ZADD', LEASES, milliseconds() + lease, number)
    if note ~= '' then
      call('HSET', NOTES, number, note)
    end
    answer[1] = 1
  end
  answer[2] = tonumber(versions[1] or 0)
  answer[3] = tonumber(versions[2] or 0)
  answer[4] = milliseconds()
end

-- ARGV: number, info
function operations.update(_, number, info)
  if is_there(number) then
    call('HSET', NODES, number, info)
    call('HINCRBY', COUNTS, 'nodes_version', 1)
  end
end

function operations.expired(answer)
  for at, number in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', '(' .. milliseconds())) do
    answer[at] = tonumber(number)
  end
end

-- ARGV: number, incarnation (empty: any)
function operations.remove(_, number, incarnation)
  if incarnation and incarnation_of(number) ~= incarnation then
    return
  end
  if call('HDEL', NODES, number) == 1 then
    call('ZREM', LEASES, number)
    call('HDEL', NOTES, number)
    call('HINCRBY', COUNTS, 'nodes_version', 1)
  end
end

-- ARGV: run, description; the reply is 0 if a run of that name exists
function operations.submit(answer, run, about)
  answer[1] = 0
  if call('HEXISTS', RUNS, run) == 0 then
    local serial = call('HINCRBY', COUNTS, 'runs', 1)
    write_run(run, { serial = serial, state = WAITING, about = about }, '')
    answer[1] = 1
  end
end

-- ARGV: run
function operations.begin(answer, run)
  local found = read_run(run)
  answer[1] = 0
  if found and found.state == WAITING then
    found.state = ACTIVE
    write_run(run, found, '')
    answer[1] = 1
  end
end

-- ARGV: run, outcome
operations['end'] = function(_, run, outcome)
  local found = read_run(run)
  if found and found.state ~= ENDED then
    found.state = ENDED
    write_run(run, found, outcome)
  end
end

-- ARGV: run
function operations.forget(_, run)
  if call('HDEL', RUNS, run) == 1 then
    call('HINCRBY', COUNTS, 'runs_version', 1)
  end
end

local earlier = earlier_answer()
if earlier then
  return earlier
end
local answer = {}
operations[ARGV[3]](answer, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return keep_answer(cmsgpack.pack(answer))
