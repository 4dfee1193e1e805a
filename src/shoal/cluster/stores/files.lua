-- Lost nodes, files and tasks: finds the tasks that must run again and those that cannot. Loaded after `tasks.lua`.
-- `shoal.core.store.memory` has the same algorithms in Python; the store contract tests compare both.

local function is_empty_task(task)
  return row(task).empty == 1
end

-- Whether the file is an input of the workflow: no task has to run to restore it.
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

-- Begins a new generation of a task. Attempt numbers contain the generation (`generation * STRIDE + n`), so results of
-- earlier attempts are recognised as outdated and rejected: a node that was declared lost cannot complete a task that
-- has been given to another node.
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

-- Whether an input of the task is gone and its producer has failed, so the task can never run.
local function is_hopeless(task)
  for _, number in ipairs(inputs_of(task)) do
    local f = file(number)
    if f.location == GONE and (f.producer == NO_TASK or row(f.producer).standing > DONE) then
      return true
    end
  end
  return false
end

-- Returns the tasks that are ready. The others become waiting, or doomed if an input can never be made.
local function whole(tasks)
  local found, still = {}, {}
  need_rows(tasks)
  if has_files then
    need_files(all_links(tasks, 2))
  end
  for _, task in ipairs(tasks) do
    local r = row(task)
    if r.standing == READY then -- otherwise it was listed twice
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

-- Returns the tasks that must run again to restore the lost files that unfinished tasks need. The search goes upwards
-- through lost inputs of these tasks.
local function remake(lost)
  local again, wanted = {}, {}
  for _, number in ipairs(lost) do
    if is_needed(file(number)) then
      wanted[#wanted + 1] = number
    end
  end
  local at = 1
  while at <= #wanted do -- the list grows during the loop
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

local CHUNK = 32768 -- rows searched at a time

-- Numbers of the rows in which the four bytes at `offset` encode `value`; of tasks, only ready ones. Compares bytes
-- instead of unpacking each row, since all rows of the run are searched.
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

-- Drops the files of a lost node; returns the tasks that must run again because a last copy was lost.
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
