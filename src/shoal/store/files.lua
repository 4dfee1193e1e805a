-- What happens when nodes, files or tasks are lost: what must run again, and what cannot. After `tasks.lua`; the same as
-- in `memory.py`.

local function is_empty_task(task)
  return row(task).empty == 1
end

-- Whether it came from outside: nobody has to run to have it again.
local function is_source(f)
  return f.producer == NO_TASK or is_empty_task(f.producer)
end

local function is_needed(f)
  if f.producer == NO_TASK then
    return false
  end
  for _, child in ipairs(children_of(f.producer)) do
    if row(child).standing < DONE then
      return true
    end
  end
  return false
end

-- Begins a new generation of a task.
local function renew(task)
  local r = open_row(task)
  r.generation = r.generation + 1
  r.owner = NOBODY
  r.giver = NOBODY
end

local function drop(number, node)
  local f = file(number)
  if f.location == node then
    open_file(number)
    f.location = table.remove(f.others, 1) or GONE
    return
  end
  for at, other in ipairs(f.others) do
    if other == node then
      open_file(number)
      table.remove(f.others, at)
      return
    end
  end
end

-- Whether something that it reads is gone, and who could make it has failed.
local function is_hopeless(task)
  for _, number in ipairs(inputs_of(task)) do
    local f = file(number)
    if f.location == GONE and (f.producer == NO_TASK or row(f.producer).standing > DONE) then
      return true
    end
  end
  return false
end

-- Those that can be placed at once. The others wait from now on, or end with what they wait for.
local function whole(tasks)
  local found, still = {}, {}
  for _, task in ipairs(tasks) do
    local r = row(task)
    if r.standing == READY then -- else it was named twice
      if has_files and is_hopeless(task) then
        end_task(task, DOOMED)
      elseif r.pending == 0 then
        found[#found + 1] = task
      else
        open_row(task).standing = WAITING
        ready_count = ready_count - 1
      end
    end
  end
  for _, task in ipairs(found) do
    if row(task).standing == READY then
      still[#still + 1] = task
    end
  end
  return still
end

local function gone_inputs(task, wanted)
  for _, number in ipairs(inputs_of(task)) do
    if file(number).location == GONE then
      wanted[#wanted + 1] = number
    end
  end
  return wanted
end

-- Tasks that must run again, so that the lost files exist for those that still need them.
local function remake(lost)
  local again, wanted = {}, {}
  for _, number in ipairs(lost) do
    if is_needed(file(number)) then
      wanted[#wanted + 1] = number
    end
  end
  local at = 1
  while at <= #wanted do -- grows while we walk it
    local task = file(wanted[at]).producer
    if task ~= NO_TASK and row(task).standing == DONE then
      open_row(task).standing = READY
      renew(task)
      left = left + 1
      ready_count = ready_count + 1
      again[#again + 1] = task
      for _, child in ipairs(children_of(task)) do
        local c = open_row(child)
        c.pending = c.pending + 1
      end
      gone_inputs(task, wanted)
    end
    at = at + 1
  end
  return whole(again)
end

-- Calls `visit` with the number of every row of a column in which four bytes are those of `value`.
local function each_with(key, row_bytes, offset, value, visit)
  local a, b, c, d = string.byte(struct.pack('<i4', value), 1, 4)
  local byte = string.byte
  local last = redis.call('STRLEN', key) / row_bytes - 1
  for first = 0, last, CHUNK do
    local text = redis.call('GETRANGE', key, first * row_bytes, (first + CHUNK) * row_bytes - 1)
    local number = first
    for at = 1 + offset, #text, row_bytes do
      local w, x, y, z = byte(text, at, at + 3)
      if w == a and x == b and y == c and z == d then
        visit(number)
      end
      number = number + 1
    end
  end
end

-- Files whose last copy was on a node; the tasks that must run again because of that.
local function lose_files(node)
  if not has_files then
    return {}
  end
  local lost = {}
  each_with(FILES, FILE_BYTES, 0, node, function(number)
    drop(number, node)
    local f = file(number)
    if f.location == GONE then
      if is_source(f) then
        f.location = EVERYWHERE
      end
      lost[#lost + 1] = number
    end
  end)
  for _, number in ipairs(redis.call('HKEYS', REPLICAS)) do
    drop(tonumber(number), node)
  end
  return remake(lost)
end
