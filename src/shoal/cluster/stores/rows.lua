-- Reads and writes the columns of a run: the first part of every script on a run.
--
-- A `redis.call` costs more than all processing of its reply in Lua, so adjacent rows are read and written together:
-- `need_*` prefetch the rows of a list of tasks or files, then `row`, `spans`, `..._of` and `file` find them in the
-- cache (or read one row). Loops over results use numeric `for`, since `ipairs` costs a function call per step. All
-- changes are written at the end (`write_all`), so a script that fails, or is rejected because memory is full, has
-- changed nothing: Redis does not roll back scripts. The layout of rows is that of `shoal.core.store.packed_columns`.

local ROWS, SPANS, CHILDREN, INPUTS, OUTPUTS, FILES, REPLICAS, LOST, RECORDED, COUNTS, LEASES, REPLIES, LOG, ABOUT =
  unpack(KEYS)
local WAITING, READY, DONE, FAILED, DOOMED = 0, 1, 2, 3, 4
local NOBODY, EVERYWHERE, GONE, NO_TASK = -1, -1, -2, -1
local STRIDE = 65536
local ROW, ROW_BYTES = '<i4i4i4i4BB', 18
local FILE, FILE_BYTES = '<i4i4i8B', 17
local SPAN_BYTES = 12
local NEAR = 8 -- rows at most so far apart are read together with those between them
local RUN = 4096 -- maximum rows per read

local rows, changed_rows = {}, {}
local files, changed_files = {}, {}
local NONE = {} -- shared by all files without further copies; never modified
local left, ready_count = 0, 0 -- changes of the counters
local has_files = ARGV[3] == '1'
local entries = {} -- new log entries
local abouts = {} -- output files and their descriptions, alternating
local call, unpack_text = redis.call, struct.unpack

-- Sorts numbers. Most lists are sorted already, and checking is much cheaper than sorting.
local function put_in_order(numbers)
  for at = 2, #numbers do
    if numbers[at] < numbers[at - 1] then
      table.sort(numbers)
      return
    end
  end
end

-- Reads rows of a column and calls `take` with number, text and offset of each; sorts `numbers`.
local function read_rows(key, width, numbers, extra, take)
  put_in_order(numbers)
  local at = 1
  while at <= #numbers do
    local first, upto = numbers[at], at
    while upto < #numbers and numbers[upto + 1] - numbers[upto] <= NEAR and numbers[upto + 1] - first < RUN do
      upto = upto + 1
    end
    local text = call('GETRANGE', key, first * width, (numbers[upto] + 1) * width + extra - 1)
    for each = at, upto do
      take(numbers[each], text, (numbers[each] - first) * width + 1)
    end
    at = upto + 1
  end
end

local function take_row(task, text, at)
  local pending, generation, owner, giver, standing, empty = unpack_text(ROW, text, at)
  rows[task] = { -- a table created with all fields is not reallocated
    pending = pending,
    generation = generation,
    owner = owner,
    giver = giver,
    standing = standing,
    empty = empty,
    changed = false,
    spans = false,
    false, -- children, once read
    false, -- inputs
    false, -- outputs
  }
end

local function need_rows(tasks)
  local lacking = {}
  for at = 1, #tasks do
    local task = tasks[at]
    if not rows[task] then
      lacking[#lacking + 1] = task
    end
  end
  read_rows(ROWS, ROW_BYTES, lacking, 0, take_row)
end

local function row(task)
  if not rows[task] then
    read_rows(ROWS, ROW_BYTES, { task }, 0, take_row)
  end
  return rows[task]
end

-- Returns a row for modification.
local function open_row(task)
  local found = row(task)
  if not found.changed then
    found.changed = true
    changed_rows[#changed_rows + 1] = task
  end
  return found
end

-- Ranges of the children, inputs and outputs of a task.
local function take_spans(task, text, at)
  rows[task].spans = { unpack_text('<i4i4i4i4i4i4', text, at) }
end

local function spans(task)
  local found = row(task)
  if not found.spans then
    read_rows(SPANS, SPAN_BYTES, { task }, SPAN_BYTES, take_spans)
  end
  return found.spans
end

-- Reads the children (`which` is 1), inputs (2) or outputs (3) of tasks.
local LINKS = { CHILDREN, INPUTS, OUTPUTS }
local function need_links(tasks, which)
  need_rows(tasks)
  local bare, lacking = {}, {}
  for at = 1, #tasks do
    local task = tasks[at]
    if not rows[task].spans then
      bare[#bare + 1] = task
    end
    if not rows[task][which] then
      lacking[#lacking + 1] = task
    end
  end
  read_rows(SPANS, SPAN_BYTES, bare, SPAN_BYTES, take_spans)
  put_in_order(lacking)
  local at = 1
  while at <= #lacking do
    local from, upto = rows[lacking[at]].spans[which], at
    while upto < #lacking and rows[lacking[upto]].spans[which + 3] == rows[lacking[upto + 1]].spans[which] do
      upto = upto + 1
    end
    local to = rows[lacking[upto]].spans[which + 3]
    local text = to > from and call('GETRANGE', LINKS[which], from * 4, to * 4 - 1)
    for each = at, upto do
      local span, found = rows[lacking[each]].spans, {}
      for number = span[which], span[which + 3] - 1 do
        found[#found + 1] = unpack_text('<i4', text, (number - from) * 4 + 1)
      end
      rows[lacking[each]][which] = found
    end
    at = upto + 1
  end
end

local function links_of(task, which)
  local found = row(task)
  if not found[which] then
    need_links({ task }, which)
  end
  return found[which]
end

-- All children, inputs or outputs of tasks.
local function all_links(tasks, which)
  need_links(tasks, which)
  local found = {}
  for at = 1, #tasks do
    local task = tasks[at]
    local links = rows[task][which]
    for each = 1, #links do
      found[#found + 1] = links[each]
    end
  end
  return found
end

local function children_of(task)
  return links_of(task, 1)
end

local function inputs_of(task)
  return links_of(task, 2)
end

local function outputs_of(task)
  return links_of(task, 3)
end

local function take_file(number, text, at)
  if files[number] then
    return -- it was listed twice
  end
  local location, producer, bytes, copied = unpack_text(FILE, text, at)
  local found = {
    location = location,
    producer = producer,
    bytes = bytes,
    others = NONE,
    was_copied = copied == 1,
    changed = false,
  }
  if found.was_copied then
    found.others = {}
    local nodes = call('HGET', REPLICAS, number)
    for each = 1, #nodes, 4 do
      found.others[#found.others + 1] = unpack_text('<i4', nodes, each)
    end
  end
  files[number] = found
end

local function need_files(numbers)
  local lacking = {}
  for at = 1, #numbers do
    local number = numbers[at]
    if not files[number] then
      lacking[#lacking + 1] = number
    end
  end
  read_rows(FILES, FILE_BYTES, lacking, 0, take_file)
end

local function file(number)
  if not files[number] then
    read_rows(FILES, FILE_BYTES, { number }, 0, take_file)
  end
  return files[number]
end

local function open_file(number)
  local found = file(number)
  if not found.changed then
    found.changed = true
    changed_files[#changed_files + 1] = number
  end
  return found
end

-- Writes rows; adjacent ones in one call.
local function write_rows(key, width, numbers, text_of)
  put_in_order(numbers)
  local at = 1
  while at <= #numbers do
    local first, texts = numbers[at], {}
    while numbers[at] == first + #texts do
      texts[#texts + 1] = text_of(numbers[at])
      at = at + 1
    end
    call('SETRANGE', key, first * width, table.concat(texts))
  end
end

local function write_replicas()
  for _, number in ipairs(changed_files) do
    local f = files[number]
    if #f.others > 0 then
      local nodes = {}
      for at, node in ipairs(f.others) do
        nodes[at] = struct.pack('<i4', node)
      end
      call('HSET', REPLICAS, number, table.concat(nodes))
    elseif f.was_copied then
      call('HDEL', REPLICAS, number)
    end
  end
end

local function write_all()
  write_rows(ROWS, ROW_BYTES, changed_rows, function(task)
    local r = rows[task]
    return struct.pack(ROW, r.pending, r.generation, r.owner, r.giver, r.standing, r.empty)
  end)
  write_rows(FILES, FILE_BYTES, changed_files, function(number)
    local f = files[number]
    return struct.pack(FILE, f.location, f.producer, f.bytes, #f.others > 0 and 1 or 0)
  end)
  write_replicas()
  for first = 1, #entries, 1000 do -- `unpack` is limited to some thousands of values
    call('RPUSH', LOG, unpack(entries, first, math.min(first + 999, #entries)))
  end
  for first = 1, #abouts, 1000 do
    call('HSET', ABOUT, unpack(abouts, first, math.min(first + 999, #abouts)))
  end
  if left ~= 0 then
    call('HINCRBY', COUNTS, 'left', left)
  end
  if ready_count ~= 0 then
    call('HINCRBY', COUNTS, 'ready', ready_count)
  end
end

-- Adds the log entry with this number from ARGV, unless it is empty or missing.
local function log_entry(number)
  local entry = ARGV[5 + number]
  if entry and #entry > 0 then
    entries[#entries + 1] = entry
  end
end

local function is_lost(node)
  return call('SISMEMBER', LOST, node) == 1
end

-- Appends the locations of a task's inputs to a reply: number of pairs, then node and bytes of each.
local function tell_holdings(task, answer)
  local numbers = inputs_of(task)
  if #numbers == 1 then -- the usual case, without a sum
    local f = file(numbers[1])
    local count = (f.location >= 0 and f.bytes > 0) and 1 + #f.others or 0
    answer[#answer + 1] = count
    for at = 1, count do
      answer[#answer + 1] = at == 1 and f.location or f.others[at - 1]
      answer[#answer + 1] = f.bytes
    end
    return
  end
  local found, order = {}, {}
  local function add(node, bytes)
    if not found[node] then
      found[node] = 0
      order[#order + 1] = node
    end
    found[node] = found[node] + bytes
  end
  for _, number in ipairs(numbers) do
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

-- Makes `taker` the owner of tasks and appends them to a reply: number, then task, attempt and input locations of each.
local function tell_placeable(tasks, taker, answer)
  answer[#answer + 1] = #tasks
  need_rows(tasks)
  if has_files then
    need_files(all_links(tasks, 2))
  end
  for at = 1, #tasks do
    local task = tasks[at]
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
