-- Results of tasks, empty tasks, and failures. Loaded after `rows.lua`. `shoal.core.store.memory` has the same
-- algorithms in Python; the store contract tests compare both.

-- Prefetches the rows that `release` needs.
local function need_to_release(tasks)
  need_rows(all_links(tasks, 1))
  if has_files then
    need_files(all_links(tasks, 3))
  end
end

-- Marks a task as done; appends children whose last dependency it was to `ready`.
local function release(task, node, ready)
  local r = open_row(task)
  r.standing = DONE
  r.owner = NOBODY
  left = left - 1
  ready_count = ready_count - 1
  if has_files then
    local made = outputs_of(task)
    for at = 1, #made do
      local f = open_file(made[at])
      f.location = node
      f.others = NONE
    end
  end
  local children = children_of(task)
  for at = 1, #children do
    local child = children[at]
    local c = open_row(child)
    c.pending = c.pending - 1
    if c.pending == 0 and c.standing == WAITING then
      ready[#ready + 1] = child
    end
  end
end

-- Completes empty tasks at once; returns the others, which are to be placed.
local function settle(ready)
  local found = {}
  local at = 1
  while at <= #ready do -- the list grows during the loop
    local task = ready[at]
    local r = open_row(task)
    r.standing = READY
    ready_count = ready_count + 1
    if r.empty == 1 then
      release(task, EVERYWHERE, ready)
    else
      found[#found + 1] = task
    end
    at = at + 1
  end
  return found
end

-- Ends a task that will not be done; returns the tasks that are doomed by that.
local function end_task(task, standing)
  local r = open_row(task)
  if r.standing == READY then
    ready_count = ready_count - 1
  end
  r.standing = standing
  left = left - 1
  local doomed, stack = {}, { task }
  while #stack > 0 do
    for _, child in ipairs(children_of(table.remove(stack))) do
      local c = open_row(child)
      if c.standing == WAITING then
        c.standing = DOOMED
        left = left - 1
        doomed[#doomed + 1] = child
        stack[#stack + 1] = child
      else
        c.pending = c.pending - 1
      end
    end
  end
  return doomed
end

local operations = {}

-- node, then task and attempt of each result; further ARGV: a log entry for each. A result whose attempt is older than
-- the task's generation is ignored: the task was given to another node since.
function operations.complete(given, answer)
  local node, ready = given[1], {}
  local named = {}
  for at = 2, #given, 2 do
    named[#named + 1] = given[at]
  end
  need_to_release(named)
  answer[1] = 0
  for at = 2, #given, 2 do
    local task = given[at]
    local r = row(task)
    if r.standing == READY and given[at + 1] > r.generation * STRIDE then
      answer[#answer + 1] = task
      log_entry(at / 2)
      release(task, node, ready)
    end
  end
  answer[1] = #answer - 1
  tell_placeable(settle(ready), node, answer)
end
