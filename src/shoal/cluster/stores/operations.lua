-- The operations on a run except `complete`. Each takes a list of integers and appends integers to its reply. Loaded
-- after `files.lua`; the comment above an operation lists its arguments.

local OWNER_AT, GIVER_AT = 8, 12 -- byte offsets in a row

local function tell_list(items, answer)
  answer[#answer + 1] = #items
  for _, item in ipairs(items) do
    answer[#answer + 1] = item
  end
end

-- node, number of results, task and attempt of each; then for each output file the index of its result (from 0), its
-- number and its bytes; further ARGV: a log entry for each result and a description of each file
function operations.complete_made(given, answer)
  local count = given[2]
  local plain = { given[1] }
  for at = 3, 2 + 2 * count do
    plain[#plain + 1] = given[at]
  end
  local about = 5 + count -- index in ARGV
  for at = 3 + 2 * count, #given, 3 do
    about = about + 1
    local result = 3 + 2 * given[at]
    local r = row(given[result])
    if r.standing == READY and given[result + 1] > r.generation * STRIDE then
      open_file(given[at + 1]).bytes = given[at + 2]
      abouts[#abouts + 1] = given[at + 1]
      abouts[#abouts + 1] = ARGV[about]
    end
  end
  operations.complete(plain, answer)
end

-- task and attempt (-1: no attempt is known); further ARGV: a log entry
function operations.give_up(given, answer)
  local task, attempt = given[1], given[2]
  local r = row(task)
  if r.standing > READY or (attempt >= 0 and attempt < r.generation * STRIDE) then
    tell_list({}, answer)
  else
    log_entry(1)
    tell_list(end_task(task, FAILED), answer)
  end
end

-- ARGV: a log entry
function operations.note()
  entries[1] = ARGV[6]
end

-- tasks
function operations.cancel(given, answer)
  local held = {}
  for _, task in ipairs(given) do
    local standing = row(task).standing
    if standing == READY then
      held[#held + 1] = task
    end
    if standing <= READY then
      end_task(task, FAILED)
    end
  end
  tell_list(held, answer)
end

-- node, then tasks
function operations.owned(given)
  if is_lost(given[1]) then
    return
  end
  local tasks = {}
  for at = 2, #given do
    tasks[at - 1] = given[at]
  end
  need_rows(tasks)
  for _, task in ipairs(tasks) do
    local r = open_row(task)
    r.owner = given[1]
    r.giver = NOBODY
  end
end

-- taker
function operations.unowned(given, answer)
  local found = {}
  if not is_lost(given[1]) then
    found = rows_with(ROWS, ROW_BYTES, OWNER_AT, NOBODY)
  end
  tell_placeable(found, given[1], answer)
end

-- sender, receiver, number of the transfer, then tasks. A transfer that was recorded before is not recorded again.
function operations.moved(given, answer)
  local giver, node, number, again = given[1], given[2], given[3], {}
  local last = tonumber(call('HGET', RECORDED, giver) or 0)
  if is_lost(giver) or (number > 0 and number <= last) then
    tell_placeable({}, giver, answer)
    return
  end
  local refused = is_lost(node)
  for at = 4, #given do
    local task = given[at]
    local r = row(task)
    if r.owner == giver then
      if not refused then
        open_row(task)
        r.owner = node
        r.giver = giver
      elseif r.standing == READY then
        renew(task)
        again[#again + 1] = task
      end
    end
  end
  tell_placeable(whole(again), giver, answer)
  if number > 0 then
    call('HSET', RECORDED, giver, number)
  end
end

-- node, then task and attempt of each
function operations.claim(given, answer)
  local node, found = given[1], {}
  for at = 2, #given, 2 do
    local r = row(given[at])
    if
      r.standing == READY
      and r.owner == node
      and (r.giver == NOBODY or is_lost(r.giver))
      and given[at + 1] == r.generation * STRIDE
    then
      renew(given[at])
      found[#found + 1] = given[at]
    end
  end
  tell_placeable(whole(found), node, answer)
end

-- task, attempt, taker
function operations.hand_back(given, answer)
  local task = given[1]
  local r = row(task)
  if r.standing == READY and given[2] >= r.generation * STRIDE then
    renew(task)
    r.owner = given[3]
    answer[1] = r.generation * STRIDE
  end
end

-- task, attempt, taker
function operations.missing(given, answer)
  local task = given[1]
  local r = row(task)
  local found = {}
  if r.standing == READY and given[2] > r.generation * STRIDE then
    renew(task)
    found = remake(gone_inputs(task, {}))
    for _, other in ipairs(whole({ task })) do
      found[#found + 1] = other
    end
  end
  tell_placeable(found, given[3], answer)
end

-- node, taker. The reply lists the requeued tasks, then owner, task and attempt of each task that was in transfer from
-- the lost node: its new owner may not have received it, and then claims it.
function operations.lose(given, answer)
  local node, taker, promised = given[1], given[2], {}
  if is_lost(taker) then
    tell_placeable({}, taker, answer)
    return
  end
  local again = rows_with(ROWS, ROW_BYTES, OWNER_AT, node)
  need_rows(again)
  for _, task in ipairs(rows_with(ROWS, ROW_BYTES, GIVER_AT, node)) do
    local r = open_row(task)
    if r.owner ~= node then
      promised[#promised + 1] = r.owner
      promised[#promised + 1] = task
      promised[#promised + 1] = r.generation * STRIDE
    end
  end
  for _, task in ipairs(again) do
    renew(task)
  end
  for _, task in ipairs(lose_files(node)) do
    again[#again + 1] = task
  end
  tell_placeable(whole(again), taker, answer)
  for _, number in ipairs(promised) do
    answer[#answer + 1] = number
  end
  call('SADD', LOST, node)
  call('ZREM', LEASES, node)
end

local function milliseconds()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- node, milliseconds
function operations.renew(given, answer)
  if is_lost(given[1]) then
    answer[1] = 0
    return
  end
  call('ZADD', LEASES, milliseconds() + given[2], given[1])
  answer[1] = 1
end

function operations.expired(_, answer)
  for at, node in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', '(' .. milliseconds())) do
    answer[at] = tonumber(node)
  end
end

-- task
function operations.whereabouts(given, answer)
  local r = row(given[1])
  answer[1], answer[2], answer[3] = r.standing, r.pending, r.owner
end

-- task
function operations.holdings(given, answer)
  tell_holdings(given[1], answer)
end

-- file
function operations.copies(given, answer)
  if not has_files then
    return
  end
  local f = file(given[1])
  if f.location >= 0 then
    answer[1] = f.location
    for _, other in ipairs(f.others) do
      answer[#answer + 1] = other
    end
  end
end

-- file, node
function operations.copied(given)
  if not has_files then
    return
  end
  local number, node = given[1], given[2]
  local f = file(number)
  if f.location == GONE or f.location == node or is_lost(node) then
    return
  end
  if f.location == EVERYWHERE then
    open_file(number).location = node
    return
  end
  for _, other in ipairs(f.others) do
    if other == node then
      return
    end
  end
  open_file(number)
  local others = { unpack(f.others) }
  others[#others + 1] = node
  f.others = others
end

-- file, node
function operations.dropped(given)
  if has_files then
    drop(given[1], given[2])
  end
end
