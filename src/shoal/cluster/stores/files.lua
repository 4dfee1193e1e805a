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
  need_rows(tasks)
  if has_files then
    need_files(all_links(tasks, 2))
  end
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

local CHUNK = 32768 -- rows that are looked through at a time

-- Numbers of the rows of a column in which the four bytes at `offset` are those of `value`; of tasks, only ready ones.
local function rows_with(key, width, offset, value)
  local a, b, c, d = string.byte(struct.pack('<i4', value), 1, 4)
  local byte, found = string.byte, {}
  local standing = key == ROWS and 16 - offset
  local last = call('STRLEN', key) / width - 1
  for first = 0, last, CHUNK do
    local text = call('GETRANGE', key, first * width, (first + CHUNK) * width - 1)
    local number = first
    for at = 1 + offset, #text, width do
      if not standing or byte(text, at + standing) == READY then
        local w, x, y, z = byte(text, at, at + 3)
        if w == a and x == b and y == c and z == d then
          found[#found + 1] = number
        end
      end
      number = number + 1
    end
  end
  return found
end

-- Files whose last copy was on a node; the tasks that must run again because of that.
local function lose_files(node)
  if not has_files then
    return {}
  end
  local lost, here = {}, rows_with(FILES, FILE_BYTES, 0, node)
  need_files(here)
  for _, number in ipairs(here) do
    drop(number, node)
    local f = file(number)
    if f.location == GONE then
      if is_source(f) then
        f.location = EVERYWHERE
      else
        lost[#lost + 1] = number
      end
    end
  end
  for _, number in ipairs(call('HKEYS', REPLICAS)) do
    drop(tonumber(number), node)
  end
  return remake(lost)
end
