-- Reading and writing the books of a run: every script begins with this part.
--
-- Rows are read once and kept here; what is changed is written only at the end (`write_all`). So a script that is
-- refused for want of memory, or fails, has changed nothing. The layout of rows is that of `columns.py`.

local ROWS, SPANS, CHILDREN, INPUTS, OUTPUTS, FILES, REPLICAS, LOST, RECORDED, COUNTS, LEASES, REPLIES = unpack(KEYS)
local WAITING, READY, DONE, FAILED, DOOMED = 0, 1, 2, 3, 4
local NOBODY, EVERYWHERE, GONE, NO_TASK = -1, -1, -2, -1
local STRIDE = 65536
local ROW, ROW_BYTES = '<i4i4i4i4BB', 18
local FILE, FILE_BYTES = '<i4i4i8B', 17
local CHUNK = 32768 -- rows that are looked through at a time

local rows, changed_rows = {}, {}
local files, changed_files = {}, {}
local left, ready_count = 0, 0 -- what is to be added to the counts
local has_files = ARGV[3] == '1'

local function row(task)
  local found = rows[task]
  if not found then
    local at = task * ROW_BYTES
    found = { task = task }
    found.pending, found.generation, found.owner, found.giver, found.standing, found.empty =
      struct.unpack(ROW, redis.call('GETRANGE', ROWS, at, at + ROW_BYTES - 1))
    rows[task] = found
  end
  return found
end

-- A row that is going to be changed.
local function open_row(task)
  local found = row(task)
  if not found.changed then
    found.changed = true
    changed_rows[#changed_rows + 1] = found
  end
  return found
end

local function integers(key, from, upto)
  local found = {}
  if upto > from then
    local text = redis.call('GETRANGE', key, from * 4, upto * 4 - 1)
    for at = 1, upto - from do
      found[at] = struct.unpack('<i4', text, at * 4 - 3)
    end
  end
  return found
end

-- Where the children, inputs and outputs of a task begin and end.
local function spans(task)
  local found = row(task)
  if not found.spans then
    local at = task * 12
    found.spans = { struct.unpack('<i4i4i4i4i4i4', redis.call('GETRANGE', SPANS, at, at + 23)) }
  end
  return found.spans
end

local function children_of(task)
  local span = spans(task)
  return integers(CHILDREN, span[1], span[4])
end

local function inputs_of(task)
  local span = spans(task)
  return integers(INPUTS, span[2], span[5])
end

local function outputs_of(task)
  local span = spans(task)
  return integers(OUTPUTS, span[3], span[6])
end

local function file(number)
  local found = files[number]
  if not found then
    local at = number * FILE_BYTES
    local copied
    found = { number = number, others = {} }
    found.location, found.producer, found.bytes, copied =
      struct.unpack(FILE, redis.call('GETRANGE', FILES, at, at + FILE_BYTES - 1))
    if copied == 1 then
      local text = redis.call('HGET', REPLICAS, number)
      for at = 1, #text, 4 do
        found.others[#found.others + 1] = struct.unpack('<i4', text, at)
      end
    end
    found.was_copied = copied == 1
    files[number] = found
  end
  return found
end

local function open_file(number)
  local found = file(number)
  if not found.changed then
    found.changed = true
    changed_files[#changed_files + 1] = found
  end
  return found
end

local function write_all()
  for _, r in ipairs(changed_rows) do
    local text = struct.pack(ROW, r.pending, r.generation, r.owner, r.giver, r.standing, r.empty)
    redis.call('SETRANGE', ROWS, r.task * ROW_BYTES, text)
  end
  for _, f in ipairs(changed_files) do
    local is_copied = #f.others > 0
    local text = struct.pack(FILE, f.location, f.producer, f.bytes, is_copied and 1 or 0)
    redis.call('SETRANGE', FILES, f.number * FILE_BYTES, text)
    if is_copied then
      local nodes = {}
      for at, node in ipairs(f.others) do
        nodes[at] = struct.pack('<i4', node)
      end
      redis.call('HSET', REPLICAS, f.number, table.concat(nodes))
    elseif f.was_copied then
      redis.call('HDEL', REPLICAS, f.number)
    end
  end
  if left ~= 0 then
    redis.call('HINCRBY', COUNTS, 'left', left)
  end
  if ready_count ~= 0 then
    redis.call('HINCRBY', COUNTS, 'ready', ready_count)
  end
end

local function is_lost(node)
  return redis.call('SISMEMBER', LOST, node) == 1
end

-- Adds where a task's inputs are to an answer: how many pairs, then node and bytes of each.
local function tell_holdings(task, answer)
  local found, order = {}, {}
  local function add(node, bytes)
    if not found[node] then
      found[node] = 0
      order[#order + 1] = node
    end
    found[node] = found[node] + bytes
  end
  for _, number in ipairs(inputs_of(task)) do
    local f = file(number)
    if f.location >= 0 and f.bytes > 0 then
      add(f.location, f.bytes)
      for _, other in ipairs(f.others) do
        add(other, f.bytes)
      end
    end
  end
  answer[#answer + 1] = #order
  for _, node in ipairs(order) do
    answer[#answer + 1] = node
    answer[#answer + 1] = found[node]
  end
end

-- Adds tasks that somebody takes to an answer: how many, then task, attempt and holdings of each.
local function tell_placeable(tasks, taker, answer)
  answer[#answer + 1] = #tasks
  for _, task in ipairs(tasks) do
    if taker ~= NOBODY then
      open_row(task).owner = taker
    end
    answer[#answer + 1] = task
    answer[#answer + 1] = row(task).generation * STRIDE
    if has_files then
      tell_holdings(task, answer)
    end
  end
end
