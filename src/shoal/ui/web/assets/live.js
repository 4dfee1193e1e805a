/* The live page of a run: its sections and their content. Data from the run is inserted as text, never as markup.
   frame.js receives the parts; plots.js draws. */
"use strict";
(() => {
  const P = Plots, make = P.element;
  const { parts, get, said, section, show, text, rowsOf, is, since, title, about, heard } = Frame;
  const STATES = { done: "var(--good)", failed: "var(--bad)", cancelled: "var(--warn)", running: "var(--accent)", ready: "var(--ready)", waiting: "var(--idle)" };
  const { open: openTask, link: taskLink, mark, or } = TaskPage;

  // ---- page header ----------------------------------------------------------------------------------------------------

  function head() {
    const run = parts.run;
    if (!run) return;
    const kind = run.outcome === "ok" ? "ok" : run.live ? "live" : run.id ? "bad" : "";
    title.replaceChildren(run.workflow, " ", make("span", { class: "chip " + kind }, run.outcome === "ok" ? "completed" : run.outcome.replace(/^it was /, "")));
    const moment = run.began && new Date(run.began * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
    about.textContent = run.id ? `Run ${run.id}, started ${moment} ${run.cluster ? `on ${run.nodes ? P.many(run.nodes, "node") : "the cluster"}` : "on " + run.host}, ${P.number(run.cores)} ${run.cores === 1 ? "core" : "cores"}` : "This workflow has not been run yet. The page starts when a run does.";
    document.title = (parts.progress && parts.progress.to_run && run.live ? P.shareOf(parts.progress.done, parts.progress.to_run) + " · " : "") + run.workflow;
  }
  /* The number of tasks of a net is not known in advance. */
  const soFar = (p) => !p.to_run ? `${P.many(p.done, "task")} done so far` : `${P.shareOf(p.done, p.to_run)} of ${P.many(p.to_run, "task")} ${p.to_run === 1 ? "is" : "are"} done`;

  // ---- progress -----------------------------------------------------------------------------------------------------

  section("progress", "Progress", ["progress", "running", "run"], (room) => {
    const bar = make("div"), tiles = make("div", { class: "tiles" }), going = make("div"), list = make("div");
    const names = {};
    for (const [key, told] of [["done", "tasks done"], ["failed", "failed"], ["running", "running"], ["left", "remaining"], ["elapsed", "elapsed"], ["rate", "tasks per second"]]) {
      const value = make("b"), under = make("span", {}, told);
      names[key] = { value, under, tile: make("div", { class: "tile", id: "tile-" + key }, value, under) };
      tiles.append(names[key].tile);
    }
    const table = P.table([{ label: "task", text: true, show: (v) => make("span", {}, taskLink(v[0], v[1]), v[2] ? ` on ${v[2]}` : "") }, { label: "attempt" }, { label: "running for", show: P.seconds }], [], { label: "longest-running tasks", narrow: true });
    list.append(make("h3", {}, "Longest-running tasks"), table);
    const reason = make("pre", { id: "run-why", class: "hidden", tabindex: "0" });
    const asked = make("button", { id: "ask-why", onclick: async () => {
      asked.disabled = true;
      try {
        const w = await get("why");
        reason.textContent = w.text;
      } catch (error) { reason.textContent = said(error); }
      reason.classList.remove("hidden");
      asked.disabled = false;
    } }, "Why are the other tasks not running?");
    room.append(bar, tiles, going, list, asked, reason);
    let spoken = null;
    const elapsed = () => parts.progress.elapsed + (parts.run.live ? since() : 0);
    setInterval(() => { if (parts.progress && parts.run && parts.run.live) names.elapsed.value.textContent = P.seconds(elapsed()); }, 1000);
    return (mine) => {
      const p = parts.progress, live = parts.run && parts.run.live;
      if (!show(mine, Boolean(p))) return;
      const part = (name, value, colour) => ({ name, value, colour, text: P.count(value) });
      const all = [part("done", p.done, STATES.done), part("failed", p.failed, STATES.failed), part("running", p.running, STATES.running), part("cancelled", p.cancelled, STATES.cancelled), ...(live ? [part("not started", p.waiting, STATES.waiting), part("cannot run", p.cannot_run, "var(--warn)")] : [part("not run", p.waiting + p.cannot_run, STATES.waiting)])];
      if (!is(bar)) bar.replaceChildren(P.whole(all.filter((one) => one.value), "tasks"));
      names.done.value.textContent = P.count(p.done);
      names.done.under.textContent = (p.to_run ? `of ${P.many(p.to_run, "task")} done` : "tasks done") + (p.up_to_date ? `, ${P.count(p.up_to_date)} already up to date` : "");
      names.failed.value.textContent = P.count(p.failed);
      names.running.value.textContent = P.count(p.running);
      names.elapsed.value.textContent = P.seconds(elapsed());
      names.elapsed.under.textContent = live ? "elapsed" : "wall time";
      names.rate.value.textContent = P.number(p.rate);
      names.left.value.textContent = p.left === null ? "–" : P.estimate(p.left);
      names.left.under.textContent = p.left === null ? "remaining (no estimate yet)" : `remaining (${P.estimate(p.least)} to ${P.estimate(p.most)})`;
      names.left.tile.classList.toggle("hidden", !live || Boolean(parts.net));  // the number of tasks of a net is not known in advance
      names.running.tile.classList.toggle("hidden", !live);
      asked.classList.toggle("hidden", !live);
      if (!live) reason.classList.add("hidden");
      const running = parts.running || [];
      list.classList.toggle("hidden", !running.length);
      table.tell(running.map((r) => [[r.task, r.name, r.node], r.attempt, Math.max(0, p.elapsed - r.since)]));
      list.style.minHeight = live ? Math.max(parseFloat(list.style.minHeight) || 0, list.offsetHeight) + "px" : "";  // content below must not jump
      const tenth = !live ? 11 : p.to_run ? Math.floor(10 * p.done / p.to_run) : -String(p.done).length;  // announced at each tenth, or at each power of ten
      if (tenth !== spoken) {
        spoken = tenth;
        heard.textContent = live ? soFar(p) + (p.left === null ? "" : `, about ${P.estimate(p.left)} remaining`)
          : `The run has ended: ${P.many(p.done, "task")} done, ${P.count(p.failed)} failed.`;
      }
    };
  });

  // ---- over time ----------------------------------------------------------------------------------------------------

  function timeline() {
    const t = parts.time;
    if (!t) return null;
    const found = { begin: 0, end: t.width * t.buckets, buckets: t.buckets, shown: t.shown, cores: t.shown.map(() => []), memory: t.shown.map(() => []), total: t.total, crowded: t.crowded };
    for (const name of ["lost", "untold", "capacity", "running", "ready", "done", "failed"]) found[name] = [];
    for (let k = 0; found.done.length < t.buckets; k++) {
      const chunk = parts["time." + k];
      if (!chunk) return null;
      const size = chunk.done.length, full = (values) => values && values.length ? values : new Array(size).fill(0);
      for (const name of ["cores", "memory"]) found[name].forEach((row, i) => row.push(...full(chunk[name][i])));
      for (const name of ["lost", "untold", "capacity", "running", "ready", "done", "failed"]) found[name].push(...full(chunk[name]));
    }
    return found;
  }
  section("utilisation", "Utilisation", ["time"], (room) => {
    let red = false, drawn = null;
    const by = (t, rows) => rows.map((values, i) => ({ name: t.shown[i], values, colour: P.colour(i) })).filter((s) => s.values.some((v) => v > 0));
    const held = (t, i) => t.cores.reduce((sum, row) => sum + row[i], t.untold[i]);
    const cores = (t) => ({ begin: 0, end: t.end, buckets: t.buckets, limit: t.capacity, idleColour: red ? "#3f9d57" : "",
      label: `Cores in use over time; ${P.number(held(t, t.buckets - 1))} of ${P.number(t.capacity[t.buckets - 1])} now`,
      series: red ? [{ name: "busy", values: t.running.map((_, i) => held(t, i)), colour: "#c8372d" }] : [...by(t, t.cores), ...P.underway(t.untold)] });
    const memory = (t) => ({ begin: 0, end: t.end, buckets: t.buckets, series: by(t, t.memory), label: "Memory in use over time, by category" });
    const states = (t) => {
      const waiting = t.running.map((r, i) => Math.max(0, t.total - t.done[i] - t.failed[i] - r - t.ready[i]));
      const series = [["done", t.done], ["failed", t.failed], ["running", t.running], ["ready", t.ready], [parts.time.ready ? "waiting" : "not started", waiting]].map(([name, values]) => ({ name, values, colour: STATES[name] || STATES.waiting }));
      return { begin: 0, end: t.end, buckets: t.buckets, series: series.filter((s) => s.values.some((v) => v > 0)), label: "Tasks by state over time" };
    };
    const choice = (name, value) => make("button", { "aria-pressed": String(red === value), onclick: (event) => {
      red = value;
      for (const other of event.target.parentNode.children) other.setAttribute("aria-pressed", String(other === event.target));
      drawn[0].blur();
      drawn[0].tell(cores(timeline()));
    } }, name);
    return (mine) => {
      const t = timeline();
      if (!show(mine, Boolean(t) && t.capacity.length > 0)) return;
      const used = t.memory.some((row) => row.some((v) => v > 0));
      if (drawn) {
        drawn[0].tell(cores(t)); drawn[1].tell(memory(t)); drawn[2].tell(states(t));
        drawn[1].classList.toggle("hidden", !used);
        return;
      }
      drawn = [P.stacked({ ...cores(t), limitName: "cores available", idle: true, unit: P.number, high: 240, caption: t.crowded ? "Cores busy" : "Cores allocated" }),
        P.stacked({ ...memory(t), unit: P.bytes, high: 180, caption: "Memory in use, by category" }), P.stacked({ ...states(t), unit: P.number, high: 180, caption: "Tasks by state" })];
      drawn[1].classList.toggle("hidden", !used);
      room.append(make("div", { class: "tools", role: "group", "aria-label": "colours of the core chart" }, choice("By category", false), choice("Busy and idle", true)), ...drawn);
    };
  });

  // ---- Gantt chart --------------------------------------------------------------------------------------------------

  const NOTHING = { kind: "bars", begin: 0, end: 1, rows: [], row: [], start: [], length: [], category: [], bad: [], name: [], attempt: [], task: [] };
  class LiveGantt extends P.Gantt {
    static enter = "opens the task or zooms in";
    constructor() {
      super(NOTHING, [], "Gantt chart of attempts on the slots of each node; the node and task tables show the same data as text");
      this.whole = true;
      let pressed = 0;
      this.canvas.addEventListener("pointerdown", (event) => { pressed = event.offsetX; });
      this.canvas.addEventListener("click", (event) => { if (Math.abs(event.offsetX - pressed) < 4) this.open(event.offsetX, event.offsetY); });
    }
    show(from, to) {
      super.show(from, to);
      this.whole = this.to - this.from >= 0.999 * (this.last - this.first);
      this.ask(120);
    }
    /* Called when the run has progressed. */
    grow(end) {
      if (end === this.last && this.data !== NOTHING) return;
      this.last = Math.max(end, 1e-3);
      if (this.whole) { this.from = 0; this.to = this.last; }
      this.ask(this.data === NOTHING ? 0 : 900);
    }
    ask(delay) {
      if (delay < 500) { clearTimeout(this.timer); this.timer = 0; }
      if (!this.timer) this.timer = setTimeout(() => { this.timer = 0; this.load(); }, delay);
    }
    async load() {
      if (this.loading) { this.again = true; return; }
      this.loading = true;
      try {
        const span = this.to - this.from, wide = Math.max(200, this.room.clientWidth) * Math.min(2, window.devicePixelRatio || 1);
        const begin = this.whole ? 0 : Math.max(0, this.from - span), end = this.whole ? this.last : Math.min(this.last, this.to + span);
        const pixels = Math.min(6000, Math.ceil(wide * (end - begin) / span));
        const data = await get(`gantt?from=${begin}&to=${end}&rows=64&pixels=${pixels}&node=${encodeURIComponent(P.original(this.of || ""))}`);
        this.names = data.shown;
        this.take(data);
        const made = this.makeLegend();
        if (made.textContent !== this.legend.textContent) { this.legend.replaceWith(made); this.legend = made; }
        this.soon();
      } catch (error) { this.heard.textContent = said(error); }
      this.loading = false;
      if (this.again) { this.again = false; this.ask(100); }
    }
    choose() { if (!this.cells && this.picked !== undefined) openTask(this.data.task[this.picked]); else super.choose(); }
    open(x, y) {
      const row = Math.floor((y - this.top) / this.pitch);
      if (this.cells || x < this.left || row < 0 || row >= this.data.rows.length) return;
      const hit = this.hit(row, this.timeAt(x), (this.to - this.from) / this.canvas.clientWidth);
      if (hit !== undefined) openTask(this.data.task[hit]);
    }
  }
  const chart = new LiveGantt();
  section("gantt", "Task timeline", ["time", "nodes", "run"], (room) => {
    const choice = make("select", { "aria-label": "node", onchange: () => { chart.of = choice.value; chart.ask(0); } }, make("option", { value: "" }, "all nodes"));
    const choose = make("label", { class: "hidden" }, "Show slots of ", choice);
    room.append(text("Zoom in until single attempts are visible; select one node if there are many. Click an attempt, or press Enter, to open its task.", true), choose, chart.node);
    let was = false;
    return (mine) => {
      if (!show(mine, Boolean(parts.time && parts.progress && parts.progress.attempts + parts.progress.running))) return;
      if (was && !parts.run.live) chart.ask(0);  // the companion server stops soon after its run
      was = Boolean(parts.run && parts.run.live);
      const known = rowsOf("nodes").map((node) => node.name);
      choose.classList.toggle("hidden", known.length < 2);
      if (choice.length !== known.length + 1 && !is(choice)) { choice.replaceChildren(choice.firstChild, ...known.map((name) => make("option", { value: name }, name))); choice.value = chart.of || ""; }
      chart.grow(parts.time.end);
    };
  });

  // ---- task graph, and nets -----------------------------------------------------------------------------------------

  const goes = () => Boolean(parts.run && parts.run.live);
  section("graph", "Graph", ["graph", "run"], (room) => {
    let drawn = null, single = window.innerWidth >= 700;  // in a narrow window, lines between single tasks are too dense
    const tasks = (t) => ({ small: true, label: `Dependency graph of ${P.many(t.nodes.length, "task")}; arrow keys move between tasks`, edges: t.edges,
      nodes: t.nodes.map((n) => ({ name: n.name, state: n.state, note: n.state + (n.category ? `, ${n.category}` : ""), act: () => openTask(n.task) })) });
    const categories = (g) => ({ small: false, label: `Dependencies between the ${g.nodes.length} categories; the category table has the numbers`,
      edges: g.edges.map(([from, to, n]) => [from, to, `${g.nodes[to].name} depends on ${g.nodes[from].name}: ${P.count(n)} ${n === 1 ? "dependency" : "dependencies"}`]),
      nodes: g.nodes.map((n) => {
        const all = Math.max(n.planned, n.done + n.failed + n.running, 1), most = P.count(n.planned);
        return { name: n.name, longest: goes() && `${most} of ${most}, ${most} running`, note: `${P.count(n.done)} of ${P.count(n.planned)}` + (n.failed ? `, ${P.count(n.failed)} failed` : n.running ? `, ${P.count(n.running)} running` : ""),
          parts: [[n.done / all, STATES.done], [n.failed / all, STATES.failed], [n.running / all, STATES.running], [1 - (n.done + n.failed + n.running) / all, STATES.waiting]], act: () => listCategory(n.name) };
      }) });
    const figures = () => single && parts.graph.tasks ? tasks(parts.graph.tasks) : categories(parts.graph);
    const choice = (name, value) => make("button", { "aria-pressed": String(single === value), onclick: (event) => {
      single = value;
      for (const other of event.target.parentNode.children) other.setAttribute("aria-pressed", String(other === event.target));
      drawn.tell(figures());
      explain();
    } }, name);
    const choose = make("div", { class: "tools", role: "group", "aria-label": "level of detail" }, choice("Tasks", true), choice("Categories", false));
    const legend = make("div");
    const explain = () => {
      const names = goes() ? ["done", "failed", "running", ...(single && parts.graph.tasks ? ["ready", "waiting"] : ["not started"])] : ["done", "failed", "not run"];
      if (parts.progress && parts.progress.cancelled && single) names.push("cancelled");
      if (legend.dataset.names === names.join()) return;
      legend.dataset.names = names.join();
      legend.replaceChildren(P.legend(names.map((state) => [state, STATES[state] || STATES.waiting])));
    };
    return (mine) => {
      if (!show(mine, Boolean(parts.graph && parts.graph.nodes.length) && !parts.net)) return;
      choose.classList.toggle("hidden", !parts.graph.tasks);
      explain();
      if (drawn) drawn.tell(figures());
      else room.append(text("Dependencies, from top to bottom. Click a task to open it, or a category to list its tasks.", true), choose, drawn = Graphs.of(figures()), legend);
    };
  });
  section("net", "Net", ["net"], (room) => {
    let drawn = null, shape = null;
    const places = P.table([{ label: "place", text: true }, { label: "tokens", show: P.count }], [], { label: "places", narrow: true });
    const tasks = P.table([{ label: "transition", text: true }, { label: "running", show: P.count }, { label: "done", show: P.count }], [], { label: "transitions", narrow: true });
    const problems = make("div"), picture = make("div");
    room.append(picture, make("div", { class: "side" }, places, tasks), problems);
    const figures = () => {
      const net = parts.net, at = new Map();
      const nodes = [...shape.places.map((p) => ["place " + p.name, { name: p.name, note: P.count(net.tokens[p.name] || 0) + (net.tokens[p.name] === 1 ? " token" : " tokens"), round: true, parts: [[net.tokens[p.name] ? 1 : 0, STATES.ready]] }]),
        ...shape.transitions.map((t) => ["transition " + t.name, { name: t.name, longest: t.kind === "task" && goes() && "9,999 running, 99,999 done", note: t.kind === "task" ? `${P.count(net.running[t.name] || 0)} running, ${P.count(net.done[t.name] || 0)} done` : "step", parts: [[net.running[t.name] ? 1 : 0, STATES.running]] }])];
      nodes.forEach(([key], i) => at.set(key, i));
      const edges = shape.arcs.map((a) => [at.get("place " + a.place), at.get("transition " + a.transition), a.kind]).filter(([p, t]) => p !== undefined && t !== undefined)
        .map(([p, t, kind]) => kind === "put" || kind === "on_error" ? [t, p, kind] : [p, t, kind]);
      return { nodes: nodes.map(([, node]) => node), edges, label: `Petri net ${net.name}; the tables below show the same data` };
    };
    async function load() {
      try { shape = await get("net"); } catch (error) { shape = { problem: said(error) }; }
      if (shape.problem) picture.append(text("The net cannot be drawn: " + shape.problem, true));
      else picture.append(drawn = Graphs.of(figures()));
    }
    return (mine) => {
      const net = parts.net;
      if (!show(mine, Boolean(net))) return;
      if (!shape) { shape = {}; load(); }
      if (drawn) drawn.tell(figures());
      places.tell(Object.entries(net.tokens));
      tasks.tell([...new Set([...Object.keys(net.done), ...Object.keys(net.running)])].map((name) => [name, net.running[name] || 0, net.done[name] || 0]));
      problems.replaceChildren(...net.problems.map((problem) => text(problem)));
    };
  });

  // ---- tables -------------------------------------------------------------------------------------------------------

  function tabled(id, title, needs, told, columns, rows) {
    section(id, title, needs, (room) => {
      const table = P.table(columns, [], { label: title.toLowerCase() });
      room.append(...(told ? [text(told, true)] : []), table);
      return (mine) => { const found = rows(); if (show(mine, found.length > 0)) table.tell(found); };
    });
  }
  const coresHeld = (mean, [[name]]) => {
    const row = rowsOf("categories").find((c) => c.name === name);
    return row ? P.range(row.cores_least, row.cores_most) : P.number(mean);
  };
  tabled("categories", "Categories", ["categories"], "Resources given and used, run times and retries of each category.", [
    { label: "category", text: true, show: ([name, place]) => make("span", {}, P.swatch(P.colour(place)), make("button", { class: "link", onclick: () => listCategory(name) }, name)) },
    { label: "planned", show: P.count }, { label: "done", show: P.count }, { label: "failed", show: P.count }, { label: "retries", show: P.count }, { label: "mean", show: or(P.seconds) }, { label: "95 %", show: or(P.seconds) },
    { label: "longest", show: or(P.seconds) }, { label: "core time", show: P.seconds }, { label: "cores per task", show: coresHeld, help: "cores allocated to one task" }, { label: "cores busy", show: P.number, help: "mean CPU use of one task, in cores" },
    { label: "memory allocated", show: or(P.bytes), help: "per task" }, { label: "peak memory", show: or(P.bytes), help: "the highest of all attempts" },
    { label: "unused", show: (v) => v === null ? "–" : make("span", { class: v > 0.5 ? "warned" : "" }, P.percent(v)), help: "share of the allocated memory that was not used, over time" }],
  () => rowsOf("categories").map((c) => [[c.name, c.place], c.planned, c.done, c.failed, c.retries, c.mean, c.p95, c.longest, c.core_seconds, c.cores, c.cores_used, c.memory_limit || c.memory_declared, c.most_memory, c.memory_waste]));
  section("nodes", "Nodes", ["nodes", "standing", "run"], (room) => {
    const map = NodeMap.map("nodes"), table = P.table([
      { label: "node", text: true }, { label: "cores", show: P.number }, { label: "memory", show: or(P.bytes) }, { label: "tasks", show: P.count }, { label: "failed attempts", show: P.count },
      { label: "busy", show: (v) => make("span", {}, P.meter(v), P.percent(v)) }, { label: "core time", show: P.seconds }, { label: "output", show: or(P.bytes), help: "size of the files that its tasks made" }, { label: "fetched", show: or(P.bytes) },
      { label: "cache hits", show: (v) => v === null ? "–" : P.percent(v), help: "share of input files that were already on the node" },
      { label: "stolen", show: or(P.count), help: "tasks that it took from other nodes" }, { label: "received", show: or(P.count), help: "tasks that other nodes pushed to it" }, { label: "connected", show: (v) => v ? "no" : "yes" }], [], { label: "nodes" });
    const rest = text("", true);
    room.append(map, rest, make("details", {}, make("summary", {}, "Show as a table"), table));
    return (mine) => {
      const now = new Map(rowsOf("standing").map((row) => [row.name, row]));
      const found = rowsOf("nodes").map((row) => ({ ...row, ...now.get(row.name), ...(row.left ? { chip: "bad", state: "left" } : {}) }));
      if (!show(mine, found.length > 0)) return;
      map.tell(found);
      rest.textContent = P.cutOff(found.length, parts.run.nodes);
      table.tell(found.map((n) => [n.name, n.cores, n.memory, n.tasks, n.failed, n.share, n.busy, n.made, n.fetched, n.hits + n.fetched_files ? n.hits / (n.hits + n.fetched_files) : null, n.stolen, n.pushed, n.left]));
    };
  });

  section("throttle", "Throttle", ["throttle"], (room) => {
    const table = P.table([{ label: "category", text: true }, { label: "node", text: true }, { label: "limit", show: (v) => v === null ? "none" : P.count(v) }, { label: "running", show: P.count }, { label: "ready", show: P.count },
      { label: "in use", show: P.percent }, { label: "tasks per second", show: P.number }, { label: "state", text: true }, { label: "reason", text: true, long: true }], [], { label: "throttle" });
    const curves = make("div", { class: "side" }), drawn = new Map();
    room.append(text("Limit on concurrent tasks of each category, and its effect.", true), table, curves);
    return (mine) => {
      const found = parts.throttle || [];
      if (!show(mine, found.length > 0)) return;
      const last = (c) => c.points[c.points.length - 1];
      table.tell(found.map((c) => [c.category || "all", c.node || "this machine", last(c)[1], last(c)[2], last(c)[3], last(c)[4], last(c)[5], c.state, c.reason]));
      for (const c of found.slice(0, 6)) {
        const name = (c.category || "all categories") + (c.node ? " on " + c.node : ""), at = (k) => c.points.map((p) => [p[0], p[k]]);
        const more = { begin: c.points[0][0], end: Math.max(parts.time ? parts.time.end : 0, last(c)[0] + 1e-3), series: [{ name: "limit", points: at(1), colour: P.colour(0) }, { name: "running", points: at(2), colour: P.colour(2) }] };
        if (drawn.has(name)) drawn.get(name).tell(more);
        else { drawn.set(name, P.lines({ ...more, unit: P.number, caption: name, label: `Limit and number of running tasks of ${name}` })); curves.append(drawn.get(name)); }
      }
    };
  });
  section("path", "Critical path", ["critical", "run", "progress", "graph"], (room) => (mine) => {
    const c = parts.critical, p = parts.progress;
    const far = !c && p && p.linked && p.attempts > 0 && parts.graph && !parts.graph.single;  // too many for live updates
    if (!show(mine, Boolean(c) || far)) return;
    if (c) { if (!is(room)) follow(room, c); } else if (!room.firstChild) {
      const button = make("button", { onclick: async () => {
        button.textContent = "Computing …";
        try {
          const found = await get("critical");
          follow(room, found);
          room.append(text("As of " + new Date().toLocaleTimeString("en-GB") + ".", true));
        } catch (error) { button.textContent = said(error); }
      } }, "Compute the critical path");
      room.append(text("This run has many tasks, so the critical path is computed on request. It takes a few seconds.", true), button);
    }
  });
  function follow(room, c) {
    const live = parts.run && parts.run.live;
    room.replaceChildren(
      text((live ? `${P.percent(c.done)} of the longest chain of tasks is done. ` : "") + (c.tasks === 1 ? `The last task to finish had no dependencies in this run. It waited ${P.seconds(c.waited)} and ran for ${P.seconds(c.ran)}.` : `The critical path has ${P.count(c.tasks)} tasks: they ran for ${P.seconds(c.ran)} and waited ${P.seconds(c.waited)} in total.`)),
      P.chain(c.steps, c.steps.length ? Math.min(0, c.steps[0].start) : 0, parts.time ? parts.time.end : 1, `The critical path: ${P.many(c.tasks, "task")}`),
      P.bars(c.by_category.slice(0, 8).map((row) => ({ name: `${row.name} (${P.count(row.tasks)})`, value: row.seconds, text: P.seconds(row.seconds), colour: P.colour(row.place) })), "time on the critical path, by category"));
  }
  tabled("failures", "Failures", ["failures"], "Failed attempts, grouped by error message without numbers and names.", [
    { label: "cause", text: true }, { label: "kind", text: true }, { label: "attempts", show: P.count }, { label: "failed tasks", show: P.count }, { label: "time lost", show: P.seconds }, { label: "categories", text: true },
    { label: "examples", text: true, show: P.examples }],
  () => (parts.failures || []).map((f) => [f.text, f.outcome, f.attempts, f.given_up, f.seconds, f.categories.join(", ") + (f.other_categories ? ` and ${f.other_categories} more` : ""), f.examples]));

  // ---- single tasks -------------------------------------------------------------------------------------------------

  let listCategory = () => {};
  const PAGE = 50, PIECE = 200;
  section("tasks", "Tasks", ["progress", "graph", "run"], (room, node) => {
    const search = make("input", { type: "search", "aria-label": "part of a task's name", placeholder: "part of a name" });
    const pick = (label, values) => make("select", { "aria-label": label, onchange: () => load() }, make("option", { value: "" }, label), ...values.map((value) => make("option", { value }, value)));
    const state = pick("all states", ["not started", "running", "done", "failed", "cancelled", "cannot run"]), category = pick("all categories", []);
    const table = P.table([{ label: "task", text: true, show: (v) => taskLink(v[0], v[1]) }, { label: "category", text: true }, { label: "state", show: mark }], [], { label: "tasks" });
    const more = make("button", { class: "hidden", onclick: () => load(true) }, "More"), told = make("p", { class: "soft", role: "status" });
    const form = make("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); load(); } }, search, state, category, make("button", {}, "Find"));
    room.append(form, told, table, more);
    /* `next` is the task number after which the list continues; null if it is complete. */
    let rows = [], next = null, loaded = 0, was = false, turn = 0, busy = false, wanted = null, filter = {};
    const ask = (after, limit) => get("tasks?" + new URLSearchParams({ ...filter, limit, after }));
    const tell = (count) => {
      table.tell(rows.map((task) => [[task.task, task.name], task.category, task.state]));
      told.textContent = count === null ? `${rows.length} shown${next === null ? "" : ", more available"}` : P.many(count, "task");
      more.classList.toggle("hidden", next === null);
    };
    async function load(on) {
      const mine = ++turn, before = on ? rows : [];
      if (!on) filter = { search: search.value, state: state.value, category: P.original(category.value) };
      loaded = performance.now();
      try {
        const found = await ask(on && next !== null ? next : -1, PAGE);
        if (mine !== turn) return;
        rows = before.concat(found.tasks);
        next = found.next;
        tell(found.matching === null ? null : found.matching + before.length);
      } catch (error) { told.textContent = said(error); }
      loaded = performance.now();
    }
    /* Reloads the visible tasks from the row `from` on. */
    async function renew(from, mine) {
      const found = await ask(from ? rows[from - 1].task : -1, PIECE), last = next === null ? Infinity : next, upTo = found.next === null ? Infinity : found.next;
      if (mine !== turn) return;
      rows = [...rows.slice(0, from), ...found.tasks.filter((one) => one.task <= last), ...rows.slice(from).filter((one) => one.task > upTo)];
      if (found.next === null && !found.tasks.some((one) => one.task > last)) next = null;
      tell(found.matching === null ? null : found.matching + from);
    }
    /* Reloads the rows on the screen, or all rows, piece by piece. */
    async function refresh(all) {
      if (busy) { wanted = wanted || Boolean(all); return; }
      busy = true;
      const mine = turn, at = new Map(rows.map((one, i) => [one.task, i])), box = table.getBoundingClientRect(), pieces = new Set(rows.length ? [] : [0]);
      loaded = performance.now();
      if (all) for (let i = 0; i < rows.length; i += PIECE) pieces.add(i);
      else for (const link of table.querySelectorAll("[data-task]")) {
        const { top, bottom } = link.getBoundingClientRect();
        if (bottom > Math.max(0, box.top) && top < Math.min(innerHeight, box.bottom)) pieces.add(PIECE * Math.floor((at.get(Number(link.dataset.task)) || 0) / PIECE));
      }
      try { for (const from of [...pieces].sort((a, b) => a - b).slice(0, all ? 50 : 4)) if (mine === turn && from <= rows.length) await renew(from, mine); } catch (error) { told.textContent = said(error); }
      const more = wanted;
      busy = false; wanted = null;
      if (more !== null) refresh(more);
    }
    let scrolled = 0;
    table.addEventListener("scroll", () => { clearTimeout(scrolled); scrolled = setTimeout(() => { if (was) refresh(); }, 300); });
    /* With very many categories, the graph and the table may show different ones. */
    const chooseCategory = (name) => {
      if (![...category.options].some((one) => one.value === name)) category.append(make("option", { value: name }, name));
      category.value = name;
    };
    listCategory = (name) => {
      chooseCategory(name);
      node.scrollIntoView();
      load();
    };
    let names = "", first = true;
    return (mine) => {
      if (!show(mine, Boolean(parts.progress))) return;
      const known = parts.graph ? parts.graph.nodes.map((n) => n.name) : [];
      if (known.join("\n") !== names) {
        const chosen = category.value;
        names = known.join("\n");
        category.replaceChildren(category.firstChild, ...known.map((value) => make("option", { value }, value)));
        chooseCategory(chosen);
      }
      const rest = parts.run && !parts.run.live ? "not run" : "not started";
      if (state.options[1].value !== rest) { const chosen = state.selectedIndex; state.options[1].value = state.options[1].textContent = rest; state.selectedIndex = chosen; }
      const live = Boolean(parts.run && parts.run.live), box = node.getBoundingClientRect(), seen = box.bottom > 0 && box.top < innerHeight;
      if (first) { first = false; load(); }
      else if (was && !live) refresh(true);
      else if (live && seen && (!state.value || !is(table)) && performance.now() - loaded > 2000) refresh();  // with a state filter, rows come and go and must not move under the pointer
      was = live;
    };
  });

  section("environment", "Data and environment", ["data", "run"], (room) => {
    const columns = [{ label: "what", text: true }, { label: "value", text: true }];
    const data = P.table(columns, [], { label: "data", narrow: true }), where = P.table(columns, [], { label: "environment", narrow: true });
    room.append(make("div", { class: "side" }, data, where));
    return (mine) => {
      const d = parts.data, r = parts.run;
      if (!show(mine, Boolean(d && r && r.id))) return;
      data.tell([["source files", d.sources ? `${P.count(d.sources)} (${P.bytes(d.source_bytes)})` : "none"], ["output of tasks", P.bytes(d.made)], ["read from disk", P.bytes(d.read)], ["written to disk", P.bytes(d.written)],
        ...(r.cluster ? [["fetched from other nodes", `${P.bytes(d.fetched)} in ${P.many(d.fetched_files, "file")}`], ["read on the same node", `${P.bytes(d.hit_bytes)} in ${P.many(d.hits, "read")}`], ["tasks stolen", P.count(d.stolen)], ["tasks pushed", P.count(d.pushed)]] : [])]);
      where.tell([["run", `${r.id} (number ${r.number} in the ledger)`], ["Shoal", r.version], [r.cluster ? "submitted from" : "machine", r.host], ["targets", r.targets.join(" ") || "default"],
        ...(r.cluster ? [["nodes", P.count(r.nodes)], ["cores in total", P.number(r.cores)]] : []), ...r.resources.map(([name, amount]) => [r.cluster ? `${name} (largest node)` : name, amount])]);
    };
  });

  Frame.start({
    head,
    clock: "progress",
    status: () => parts.reading ? `Reading the ledger: ${P.bytes(parts.reading.bytes)}, ${P.count(parts.reading.attempts)} attempts so far` : parts.run && parts.run.live ? "Live" : "",
    over: "The run has ended and its web server has stopped. Use 'shoal web' to show the run again.",
    footer: "All data comes from the run's ledger on this machine.",
    recolour: () => chart.draw(),
    more: [TaskPage.dialog],
  });
})();
