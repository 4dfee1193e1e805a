/* The dialog of one task: its data, attempts, resource usage, output, and the explanation of its state. While it is open
   and the task is not over, it follows the run. Unchanged elements stay, with focus, scroll position and open sections. */
"use strict";
const TaskPage = (() => {
  const P = Plots, make = P.element;
  const { parts, get, getText, said, text } = Frame;
  const PAUSE = 1000, MANY = 50000;
  const or = (display) => (v) => v === null || v === 0 ? "–" : display(v);
  const mark = (state) => make("span", { class: "state " + state.replace(" ", "-") }, state);
  const link = (task, name) => make("button", { class: "link", "data-task": task, onclick: () => open(task) }, name);
  const dialog = make("dialog", { "aria-labelledby": "task-head", onclick: (event) => { if (event.target === dialog) dialog.close(); }, onclose: () => { shown = null; } });
  let shown = null;

  async function open(task) {
    const content = make("div", {}, text("Loading …", true)), name = make("h2", { id: "task-head" }, "Task " + task);
    const mine = shown = { task, name, content, fill: null, state: "", asked: 0, again: 0, busy: false };
    dialog.replaceChildren(make("div", { class: "title" }, make("div", {}, name), make("button", { onclick: () => dialog.close() }, "Close")), content);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    await look(mine);
  }
  async function look(mine) {
    mine.busy = true;
    mine.asked = performance.now();
    const live = Boolean(parts.run && parts.run.live);
    try {
      const found = await get("tasks/" + mine.task);
      if (mine !== shown) return;
      if (!mine.fill) {
        mine.name.replaceChildren(found.name);
        const { nodes, tell } = sheet(mine);
        mine.content.replaceChildren(...nodes);
        mine.fill = tell;
      }
      mine.fill(found);
      mine.state = found.state;
      mine.over = !live || !["not started", "running"].includes(found.state);
    } catch (error) {
      if (mine === shown && !mine.fill) mine.content.replaceChildren(text(said(error)));
    }
    mine.busy = false;
    if (mine.missed) { mine.missed = false; follow(); }
  }
  /* The run has changed: reloads the task, at once if the run has ended, otherwise at most every second. */
  function follow() {
    const mine = shown;
    if (!mine || mine.over) return;
    if (mine.busy) { mine.missed = true; return; }
    const wait = parts.run && parts.run.live ? mine.asked + PAUSE - performance.now() : 0;
    clearTimeout(mine.again);
    if (wait <= 0) look(mine); else mine.again = setTimeout(() => { if (mine === shown) follow(); }, wait);
  }
  Frame.watch(["progress", "running", "run"], follow);

  function sheet(mine) {
    const from = make("div"), facts = make("p", { role: "status", id: "task-facts" }), tried = make("div"), course = make("div");
    const needs = several("Depends on"), needed = several("Required by"), output = make("h3", {}, "Output");
    const written = make("pre", { tabindex: "0", "aria-label": "output" });
    const attempts = P.table([{ label: "attempt" }, { label: "outcome", text: true }, { label: "node", text: true }, { label: "start", show: P.seconds, help: "since the start of the run" }, { label: "wall time", show: P.seconds }, { label: "CPU time", show: P.seconds },
      { label: "peak memory", show: or(P.bytes) }, { label: "memory limit", show: or(P.bytes) }, { label: "output", show: or(P.bytes), help: "size of the files that it made" }, { label: "message", text: true, long: true }], [], { label: "attempts" });
    tried.append(make("h3", {}, "Attempts"), attempts);
    let words = null, curves = null, chosen = 0, reading = 0;
    const read = async (attempt) => {
      const turn = ++reading;
      chosen = attempt;
      if (attempt) output.textContent = `Output of attempt ${attempt}`;
      let found;
      try { found = await getText(`tasks/${mine.task}/output` + (attempt ? `?attempt=${attempt}` : "")) || "(no output)"; } catch (error) { found = said(error); }
      if (mine !== shown || turn !== reading || found === words) return;
      const end = words !== null && written.scrollTop + written.clientHeight > written.scrollHeight - 8;
      if (words && found.startsWith(words)) written.append(found.slice(words.length)); else written.textContent = found;
      words = found;
      if (end) written.scrollTop = written.scrollHeight;  // keeps showing the end if the user is there
    };
    const tell = (task) => {
      const going = task.running ? ` · attempt ${task.running.attempt} running` + (task.running.pid ? `, process ${task.running.pid}` : "") + (parts.run && parts.run.cluster ? ` on ${task.running.node}` : "") : "";
      const about = [mark(task.state), ` · ${task.category || "no category"} · task ${task.task}${going}`];
      if (facts.textContent !== task.state + about[1]) facts.replaceChildren(...about);
      tried.classList.toggle("hidden", !task.attempts.length);
      attempts.tell(task.attempts.map((a) => [a.attempt, a.outcome, a.node, a.started, a.ended - a.started, a.cpu, a.memory, a.memory_limit, a.made, a.message]));
      const latest = task.running ? task.running.attempt : task.attempts.length ? task.attempts[task.attempts.length - 1].attempt : 0;
      if (latest && !curves) course.append(make("h3", {}, "Resource usage over time"), curves = Course.of(task, read));
      else if (curves && curves.tell(task) && chosen) read(latest);  // it shows the latest attempt, and there is a new one
      needs.tell(task.needs);
      needed.tell(task.needed_by);
      if (!chosen || (task.running && chosen === task.running.attempt) || chosen === latest) read(chosen);
      if (task.state !== mine.state) why(mine, from);
    };
    return { nodes: [facts, from, tried, course, needs.node, needed.node, output, written], tell };
  }
  function several(title) {
    const head = make("h3"), list = make("ul", { class: "several" }), node = make("div", {}, head, list);
    return { node, tell(all) {
      node.classList.toggle("hidden", !all.tasks.length);
      const told = JSON.stringify(all);
      if (node.told === told || (node.told && list.contains(document.activeElement))) return;
      node.told = told;
      head.textContent = `${title} (${P.count(all.count)})`;
      list.replaceChildren(...all.tasks.map((one) => make("li", {}, link(one.task, one.name), " ", mark(one.state))));
    } };
  }

  /* Needs a process that loads the workflow, so it is requested once, and again when the task's state has changed. */
  function why(mine, room) {
    const total = parts.progress ? parts.progress.to_run + parts.progress.up_to_date : 0, first = !room.firstChild;
    if (total <= MANY) { askWorkflow(mine, room); return; }
    const button = make("button", { onclick: () => askWorkflow(mine, room) }, first ? "Load the workflow to show command, files and reason" : "The state has changed: update the reason");
    const old = room.querySelector(":scope > button");
    if (old) old.replaceWith(button); else room.append(button);
  }
  async function askWorkflow(mine, room) {
    const known = room.querySelector("#task-why"), button = room.querySelector(":scope > button");
    if (known) known.setAttribute("aria-busy", "true"); else room.replaceChildren(text("Loading the workflow …", true));
    if (button) button.remove();
    const turn = mine.turn = (mine.turn || 0) + 1;
    let w;
    try { w = await get(`tasks/${mine.task}/workflow`); } catch (error) { w = { failed: said(error) }; }
    if (mine !== shown || turn !== mine.turn) return;
    if (known) {
      known.removeAttribute("aria-busy");
      known.textContent = w.why || w.problem || w.failed || "";
      return;
    }
    if (w.failed) { room.replaceChildren(text(w.failed)); return; }
    const found = [];
    if (w.why) found.push(make("p", { id: "task-why" }, w.why));
    if (w.problem) found.push(text(w.problem, true));
    if (w.command || w.function) found.push(make("h3", {}, w.command ? "Command" : "Function"), make("pre", { tabindex: "0", id: "task-command" }, w.command || w.function));
    if (w.file) found.push(text([`${w.file}${w.line ? ", line " + w.line : ""}`, ...w.asks.map(([name, amount]) => `${name} ${amount}`), w.retries ? `${w.retries} ${w.retries === 1 ? "retry" : "retries"}` : "", w.timeout ? "time limit " + P.seconds(w.timeout) : ""].filter(Boolean).join(" · "), true));
    for (const [title, files] of [["Inputs", w.inputs], ["Outputs", w.outputs]])
      if (files && files.length) found.push(make("h3", {}, title), make("ul", { class: "several" }, ...files.map((file) => make("li", {}, make("code", {}, file)))));
    room.replaceChildren(...found);
  }
  return { dialog, open, link, mark, or };
})();
