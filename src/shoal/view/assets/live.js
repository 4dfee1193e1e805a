/* The live page of a run: parts of it come as they change, and each section draws those that it shows. Everything that
   comes from a run is put in as text, never as markup. Drawing is left to plots.js. */
"use strict";
(() => {
  const P = Plots, make = P.element;
  const parts = {}, dirty = new Set(), sections = [];
  const STATES = { done: "var(--good)", failed: "var(--bad)", running: "var(--accent)", ready: "var(--ready)", waiting: "var(--idle)" };
  let received = performance.now(), asked = false;

  async function get(path) {
    const answer = await fetch("api/v1/" + path, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text().then((text) => { try { return JSON.parse(text).error; } catch { return text; } }));
    return answer;
  }
  const GONE = "The server has gone. 'shoal web' shows the run again.";
  const said = (error) => error instanceof TypeError ? GONE : error.message;

  function section(id, title, needs, fill) {
    const room = make("div"), node = make("section", { id, "aria-labelledby": id + "-head", class: "hidden" }, make("h2", { id: id + "-head" }, title), room);
    const mine = { id, title, node, needs, update: fill(room, node), entry: make("li", { class: "hidden" }, make("a", { href: "#" + id }, title)) };
    sections.push(mine);
    return mine;
  }
  function show(mine, there) {
    mine.node.classList.toggle("hidden", !there);
    mine.entry.classList.toggle("hidden", !there);
    return there;
  }
  const text = (sentence, soft) => make("p", { class: soft ? "soft" : "" }, sentence);
  const rowsOf = (name) => {
    const found = [];
    for (let i = 0; Array.isArray(parts[`${name}.${i}`]); i++) found.push(...parts[`${name}.${i}`]);
    return found;
  };
  const taskLink = (task, name) => make("button", { class: "link", onclick: () => openTask(task) }, name);
  const is = (node) => node.matches(":hover") || node.contains(document.activeElement);

  // ---- the head ------------------------------------------------------------------------------------------------------

  const title = make("h1"), about = make("p", { class: "soft" }), status = make("p", { class: "status", role: "status" });
  const heard = make("div", { class: "heard", "aria-live": "polite", id: "heard" });
  function theme() {
    const root = document.documentElement;
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const button = make("button", { "aria-label": "switch between light and dark", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; say(); chart.draw(); } });
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
    say();
    return button;
  }
  function head() {
    const run = parts.run;
    if (!run) return;
    const kind = run.outcome === "ok" ? "ok" : run.live ? "live" : run.id ? "bad" : "";
    title.replaceChildren(run.workflow, " ", make("span", { class: "chip " + kind }, run.outcome === "ok" ? "all done" : run.outcome));
    const moment = run.began && new Date(run.began * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
    about.textContent = run.id ? `run ${run.id} of ${moment}, ${run.cluster ? `on ${rowsOf("nodes").length || "the"} nodes` : "on " + run.host}, ${P.number(run.cores)} cores` : "Nothing has been run yet. This page begins when the run does.";
    document.title = (parts.progress && parts.progress.to_run && run.live ? P.percent(share(parts.progress)) + " · " : "") + run.workflow;
  }
  const share = (p) => p.to_run ? Math.floor(1000 * (p.done + p.failed) / p.to_run) / 1000 : 1;

  // ---- how far it is -------------------------------------------------------------------------------------------------

  section("progress", "Progress", ["progress", "running", "run"], (room) => {
    const bar = make("div"), tiles = make("div", { class: "tiles" }), going = make("div"), list = make("div");
    const names = {};
    for (const [key, told] of [["done", "tasks done"], ["failed", "failed"], ["running", "running"], ["left", "left"], ["elapsed", "so far"], ["rate", "per second"]]) {
      const value = make("b"), under = make("span", {}, told);
      names[key] = { value, under, tile: make("div", { class: "tile", id: "tile-" + key }, value, under) };
      tiles.append(names[key].tile);
    }
    const table = P.table([{ label: "task", text: true, show: (v) => taskLink(v[0], v[1]) }, { label: "attempt" }, { label: "running for", show: P.seconds }], [], { label: "tasks that run longest", narrow: true });
    list.append(make("h3", {}, "Running longest"), table);
    room.append(bar, tiles, going, list);
    let spoken = -1;
    const elapsed = () => parts.progress.elapsed + (parts.run.live ? (performance.now() - received) / 1000 : 0);
    setInterval(() => { if (parts.progress && parts.run && parts.run.live) names.elapsed.value.textContent = P.seconds(elapsed()); }, 1000);
    return (mine) => {
      const p = parts.progress, live = parts.run && parts.run.live;
      if (!show(mine, Boolean(p))) return;
      const part = (name, value, colour) => ({ name, value, colour, text: P.count(value) });
      const all = [part("done", p.done, STATES.done), part("failed", p.failed, STATES.failed), part("running", p.running, STATES.running), part(live ? "waiting" : "not run", p.waiting, STATES.waiting)];
      if (!is(bar)) bar.replaceChildren(P.whole(all.filter((one) => one.value), "tasks"));
      names.done.value.textContent = P.count(p.done);
      names.done.under.textContent = (p.to_run ? `of ${P.count(p.to_run)} tasks done` : "tasks done") + (p.up_to_date ? `, ${P.count(p.up_to_date)} were up to date` : "");
      names.failed.value.textContent = P.count(p.failed);
      names.running.value.textContent = P.count(p.running);
      names.elapsed.value.textContent = P.seconds(elapsed());
      names.rate.value.textContent = P.number(p.rate);
      names.left.value.textContent = p.left === null ? "–" : P.seconds(p.left);
      names.left.under.textContent = p.left === null ? "left: not known yet" : `left (${P.seconds(p.least)} to ${P.seconds(p.most)})`;
      names.left.tile.classList.toggle("hidden", !live);
      names.running.tile.classList.toggle("hidden", !live);
      const running = parts.running || [];
      list.classList.toggle("hidden", !running.length);
      table.tell(running.map((r) => [[r.task, r.name], r.attempt, Math.max(0, p.elapsed - r.since)]));
      list.style.minHeight = live ? Math.max(parseFloat(list.style.minHeight) || 0, list.offsetHeight) + "px" : "";  // what stands below shall not jump
      const tenth = live ? Math.floor(10 * share(p)) : 11;
      if (tenth !== spoken) {
        spoken = tenth;
        heard.textContent = live ? `${P.percent(share(p))} of ${P.count(p.to_run)} tasks are over` + (p.left === null ? "" : `, about ${P.seconds(p.left)} left`)
          : `The run is over: ${P.count(p.done)} tasks done, ${P.count(p.failed)} failed.`;
      }
    };
  });

  // ---- over time -----------------------------------------------------------------------------------------------------

  function timeline() {
    const t = parts.time;
    if (!t) return null;
    const found = { begin: 0, end: t.width * t.buckets, buckets: t.buckets, shown: t.shown, cores: t.shown.map(() => []), memory: t.shown.map(() => []), total: t.total, crowded: t.crowded };
    for (const name of ["lost", "capacity", "running", "ready", "done", "failed"]) found[name] = [];
    for (let k = 0; found.done.length < t.buckets; k++) {
      const chunk = parts["time." + k];
      if (!chunk) return null;
      const size = chunk.done.length, full = (values) => values && values.length ? values : new Array(size).fill(0);
      for (const name of ["cores", "memory"]) found[name].forEach((row, i) => row.push(...full(chunk[name][i])));
      for (const name of ["lost", "capacity", "running", "ready", "done", "failed"]) found[name].push(...full(chunk[name]));
    }
    return found;
  }
  section("utilisation", "Utilisation", ["time"], (room) => {
    let red = false, drawn = null;
    const by = (t, rows) => rows.map((values, i) => ({ name: t.shown[i], values, colour: P.colour(i) })).filter((s) => s.values.some((v) => v > 0));
    const cores = (t) => ({ begin: 0, end: t.end, buckets: t.buckets, limit: t.capacity, idleColour: red ? "#3f9d57" : "",
      label: `Cores over time; ${P.number(t.cores.reduce((sum, row) => sum + row[t.buckets - 1], 0))} of ${P.number(t.capacity[t.buckets - 1])} now`,
      series: red ? [{ name: "busy", values: t.running.map((_, i) => t.cores.reduce((sum, row) => sum + row[i], 0)), colour: "#c8372d" }] : by(t, t.cores) });
    const memory = (t) => ({ begin: 0, end: t.end, buckets: t.buckets, series: by(t, t.memory), label: "Memory in use over time by category" });
    const states = (t) => {
      const waiting = t.running.map((r, i) => Math.max(0, t.total - t.done[i] - t.failed[i] - r - t.ready[i]));
      const series = [["done", t.done], ["failed", t.failed], ["running", t.running], ["ready", t.ready], ["waiting", waiting]].map(([name, values]) => ({ name, values, colour: STATES[name] }));
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
      drawn = [P.stacked({ ...cores(t), limitName: "cores there", idle: true, unit: P.number, high: 240, caption: t.crowded ? "Cores busy" : "Cores held" }),
        P.stacked({ ...memory(t), unit: P.bytes, high: 180, caption: "Memory in use, by category" }), P.stacked({ ...states(t), unit: P.number, high: 180, caption: "Tasks by state" })];
      drawn[1].classList.toggle("hidden", !used);
      room.append(make("div", { class: "tools", role: "group", "aria-label": "how cores are drawn" }, choice("By category", false), choice("Busy, red on green", true)), ...drawn);
    };
  });

  // ---- who ran what when ---------------------------------------------------------------------------------------------

  const NOTHING = { kind: "bars", begin: 0, end: 1, rows: [], row: [], start: [], length: [], category: [], bad: [], name: [], attempt: [], task: [] };
  class LiveGantt extends P.Gantt {
    constructor() {
      super(NOTHING, [], "Attempts on the slots of nodes over time; the tables of nodes and tasks say the same in words");
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
    /* The run goes on: there is more to see. */
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
        const data = await get(`gantt?from=${begin}&to=${end}&rows=64&pixels=${pixels}`).then((answer) => answer.json());
        this.names = data.shown;
        this.take(data);
        const made = this.makeLegend();
        if (made.textContent !== this.legend.textContent) { this.legend.replaceWith(made); this.legend = made; }
        this.soon();
      } catch (error) { this.heard.textContent = said(error); }
      this.loading = false;
      if (this.again) { this.again = false; this.ask(100); }
    }
    open(x, y) {
      const row = Math.floor((y - this.top) / this.pitch);
      if (this.cells || x < this.left || row < 0 || row >= this.data.rows.length) return;
      const hit = this.hit(row, this.timeAt(x), (this.to - this.from) / this.canvas.clientWidth);
      if (hit !== undefined) openTask(this.data.task[hit]);
    }
  }
  const chart = new LiveGantt();
  section("gantt", "Who ran what when", ["time"], (room) => {
    room.append(text("Zoom in until single attempts are seen; a click on one tells about its task.", true), chart.node);
    return (mine) => { if (show(mine, Boolean(parts.time && parts.progress && parts.progress.attempts + parts.progress.running))) chart.grow(parts.time.end); };
  });

  // ---- the graph, and nets -------------------------------------------------------------------------------------------

  /* nodes: [{name, note, round, parts: [[share, colour]], act}], edges: [[from, to, note]] */
  function layers(nodes, edges) {
    const into = nodes.map(() => []), depth = nodes.map(() => 0), state = nodes.map(() => 0);
    for (const [from, to] of edges) if (from !== to) into[to].push(from);
    const visit = (at) => {  // a way back is left out, or there would be no first layer
      state[at] = 1;
      for (const from of into[at]) { if (!state[from]) visit(from); if (state[from] === 2) depth[at] = Math.max(depth[at], depth[from] + 1); }
      state[at] = 2;
    };
    nodes.forEach((_, at) => { if (!state[at]) visit(at); });
    const found = [];
    depth.forEach((d, at) => { (found[d] = found[d] || []).push(at); });
    return found.filter(Boolean);
  }
  function graph(o) {
    const draw = (room, wide, label) => {
      const across = Math.max(1, Math.floor((wide + 22) / 182)), boxWide = Math.min(160, wide - 4), boxHigh = 46, place = [];
      let y = 4;
      for (const layer of layers(o.nodes, o.edges)) {
        for (let i = 0; i < layer.length; i += across) {
          const row = layer.slice(i, i + across), left = (wide - row.length * boxWide - (row.length - 1) * 22) / 2;
          row.forEach((at, k) => { place[at] = [left + k * (boxWide + 22), y]; });
          y += boxHigh + (i + across < layer.length ? 12 : 34);
        }
      }
      const high = Math.max(60, y - 26), svg = P.shape("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, role: "img", "aria-label": label });
      for (const [from, to, note] of o.edges) {
        if (from === to) continue;
        const [x1, y1] = place[from], [x2, y2] = place[to], up = y2 <= y1;
        const ax = x1 + boxWide / 2, ay = y1 + (up ? 0 : boxHigh), bx = x2 + boxWide / 2, by = y2 + (up ? boxHigh : 0), bend = up ? -24 : Math.max(14, (by - ay) / 2);
        let d = `M${ax} ${ay}C${ax} ${ay + bend} ${bx} ${by - bend} ${bx} ${by}`, tip = up ? [bx, by, 4, 6, -4, 6] : [bx, by, 4, -6, -4, -6];
        if ((up || by - ay > 60) && Math.abs(ax - bx) < boxWide) {  // around what stands between them
          const right = Math.max(x1, x2) + boxWide, far = right + 18 + Math.abs(y2 - y1) / 10;
          d = `M${x1 + boxWide} ${y1 + boxHigh / 2}C${far} ${y1 + boxHigh / 2} ${far} ${y2 + boxHigh / 2} ${x2 + boxWide} ${y2 + boxHigh / 2}`;
          tip = [x2 + boxWide, y2 + boxHigh / 2, 6, -4, 6, 4];
        }
        const line = P.shape("path", { class: "edge", d, "stroke-width": 1.4 });
        line.append(P.shape("title", {}, note));
        svg.append(line, P.shape("path", { class: "arrow", d: `M${tip[0]} ${tip[1]}l${tip[2]} ${tip[3]}L${tip[0] + tip[4]} ${tip[1] + tip[5]}Z` }));
      }
      o.nodes.forEach((node, at) => {
        const [x, top] = place[at], group = P.shape("g", node.act ? { class: "tip-able" } : {});
        group.append(P.shape("title", {}, `${node.name}: ${node.note}`), P.shape("rect", { class: "box", x, y: top, width: boxWide, height: boxHigh, rx: node.round ? 22 : 7 }));
        let from = x + 10;
        for (const [part, colour] of node.parts) {
          group.append(P.shape("rect", { x: from, y: top + boxHigh - 9, width: Math.max(0, (boxWide - 20) * part), height: 5, fill: colour }));
          from += (boxWide - 20) * part;
        }
        const fit = (words, most) => words.length > most ? words.slice(0, most - 1) + "…" : words;
        group.append(P.shape("text", { class: "box-name", x: x + 10, y: top + 17 }, fit(node.name, 20)), P.shape("text", { x: x + 10, y: top + 32 }, fit(node.note, 25)));
        if (node.act) group.addEventListener("click", node.act);
        svg.append(group);
      });
      room.append(svg);
    };
    const figure = P.drawing(null, () => o.label, draw, {});
    figure.tell = (more) => { Object.assign(o, more); if (!figure.matches(":hover")) figure.redraw(); };
    return figure;
  }
  section("graph", "Graph", ["graph"], (room) => {
    let drawn = null;
    const figures = () => {
      const g = parts.graph;
      return { label: `What the ${g.nodes.length} categories need of each other; the table of categories has the figures`,
        edges: g.edges.map(([from, to, n]) => [from, to, `${g.nodes[to].name} needs ${g.nodes[from].name}, ${P.count(n)} times`]),
        nodes: g.nodes.map((n) => {
          const all = Math.max(n.planned, n.done + n.failed + n.running, 1);
          return { name: n.name, note: `${P.count(n.done)} of ${P.count(n.planned)}` + (n.failed ? `, ${P.count(n.failed)} failed` : n.running ? `, ${P.count(n.running)} running` : ""),
            parts: [[n.done / all, STATES.done], [n.failed / all, STATES.failed], [n.running / all, STATES.running], [1 - (n.done + n.failed + n.running) / all, STATES.waiting]], act: () => listCategory(n.name) };
        }) };
    };
    return (mine) => {
      if (!show(mine, Boolean(parts.graph && parts.graph.nodes.length) && !parts.net)) return;
      if (drawn) drawn.tell(figures());
      else room.append(text("Categories, with lines to those that need them. Green is done, red failed, blue running. A click lists the tasks.", true), drawn = graph(figures()));
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
        ...shape.transitions.map((t) => ["transition " + t.name, { name: t.name, note: t.kind === "task" ? `${P.count(net.running[t.name] || 0)} running, ${P.count(net.done[t.name] || 0)} done` : "step", parts: [[net.running[t.name] ? 1 : 0, STATES.running]] }])];
      nodes.forEach(([key], i) => at.set(key, i));
      const edges = shape.arcs.map((a) => [at.get("place " + a.place), at.get("transition " + a.transition), a.kind]).filter(([p, t]) => p !== undefined && t !== undefined)
        .map(([p, t, kind]) => kind === "put" || kind === "on_error" ? [t, p, kind] : [p, t, kind]);
      return { nodes: nodes.map(([, node]) => node), edges, label: `The net ${net.name}: the tables below say the same` };
    };
    async function load() {
      try { shape = await get("net").then((answer) => answer.json()); } catch (error) { shape = { problem: said(error) }; }
      if (shape.problem) picture.append(text("The net is not drawn: " + shape.problem, true));
      else picture.append(drawn = graph(figures()));
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

  // ---- tables --------------------------------------------------------------------------------------------------------

  const or = (display) => (v) => v === null || v === 0 ? "–" : display(v);
  function tabled(id, title, needs, told, columns, rows) {
    section(id, title, needs, (room) => {
      const table = P.table(columns, [], { label: title.toLowerCase() });
      room.append(...(told ? [text(told, true)] : []), table);
      return (mine) => { const found = rows(); if (show(mine, found.length > 0)) table.tell(found); };
    });
  }
  tabled("categories", "Categories", ["categories"], "What tasks are given, what they use of it, and how often they were tried again.", [
    { label: "category", text: true, show: ([name, place]) => make("span", {}, P.swatch(P.colour(place)), make("button", { class: "link", onclick: () => listCategory(name) }, name)) },
    { label: "planned", show: P.count }, { label: "done", show: P.count }, { label: "failed", show: P.count }, { label: "retries", show: P.count }, { label: "mean", show: or(P.seconds) }, { label: "95 %", show: or(P.seconds) },
    { label: "longest", show: or(P.seconds) }, { label: "core time", show: P.seconds }, { label: "cores held", show: P.number }, { label: "cores busy", show: P.number, help: "kept busy by one task, on average" },
    { label: "memory given", show: or(P.bytes) }, { label: "memory used", show: or(P.bytes), help: "the most of any attempt" },
    { label: "unused", show: (v) => v === null ? "–" : make("span", { class: v > 0.5 ? "warned" : "" }, P.percent(v)), help: "of the memory given, over time" }],
  () => rowsOf("categories").map((c) => [[c.name, c.place], c.planned, c.done, c.failed, c.retries, c.mean, c.p95, c.longest, c.core_seconds, c.cores, c.cores_used, c.memory_limit || c.memory_declared, c.most_memory, c.memory_waste]));
  tabled("nodes", "Nodes", ["nodes"], "", [
    { label: "node", text: true }, { label: "cores", show: P.number }, { label: "memory", show: or(P.bytes) }, { label: "tasks", show: P.count }, { label: "not succeeded", show: P.count },
    { label: "busy", show: (v) => make("span", {}, P.meter(v), P.percent(v)) }, { label: "core time", show: P.seconds }, { label: "made", show: or(P.bytes) }, { label: "fetched", show: or(P.bytes) },
    { label: "stolen", show: or(P.count), help: "tasks that it took from others" }, { label: "pushed to it", show: or(P.count) }, { label: "there", show: (v) => v ? "has left" : "yes" }],
  () => rowsOf("nodes").map((n) => [n.name, n.cores, n.memory, n.tasks, n.failed, n.share, n.busy, n.made, n.fetched, n.stolen, n.pushed, n.left]));

  section("throttle", "Throttle", ["throttle"], (room) => {
    const table = P.table([{ label: "category", text: true }, { label: "node", text: true }, { label: "may run", show: (v) => v === null ? "no limit" : P.count(v) }, { label: "run", show: P.count }, { label: "wait", show: P.count },
      { label: "in use", show: P.percent }, { label: "per second", show: P.number }, { label: "state", text: true }, { label: "why", text: true }], [], { label: "throttle" });
    const curves = make("div", { class: "side" }), drawn = new Map();
    room.append(text("How many tasks of a category are let run together, and what comes of it.", true), table, curves);
    return (mine) => {
      const found = parts.throttle || [];
      if (!show(mine, found.length > 0)) return;
      const last = (c) => c.points[c.points.length - 1];
      table.tell(found.map((c) => [c.category || "all", c.node || "here", last(c)[1], last(c)[2], last(c)[3], last(c)[4], last(c)[5], c.state, c.reason]));
      for (const c of found.slice(0, 6)) {
        const name = (c.category || "all categories") + (c.node ? " on " + c.node : ""), at = (k) => c.points.map((p) => [p[0], p[k]]);
        const more = { begin: c.points[0][0], end: Math.max(parts.time ? parts.time.end : 0, last(c)[0] + 1e-3), series: [{ name: "may run", points: at(1), colour: P.colour(0) }, { name: "run", points: at(2), colour: P.colour(2) }] };
        if (drawn.has(name)) drawn.get(name).tell(more);
        else { drawn.set(name, P.lines({ ...more, unit: P.number, caption: name, label: `How many tasks of ${name} may run and run` })); curves.append(drawn.get(name)); }
      }
    };
  });
  section("path", "Critical path", ["critical", "run", "progress"], (room) => (mine) => {
    const c = parts.critical, p = parts.progress;
    const far = !c && p && p.linked && p.attempts > 0 && p.to_run > 50000;  // too many tasks to do it all the time
    if (!show(mine, Boolean(c) || far)) return;
    if (c) { if (!is(room)) follow(room, c); } else if (!room.firstChild) {
      const button = make("button", { onclick: async () => {
        button.textContent = "Working it out …";
        try {
          const found = await get("critical").then((answer) => answer.json());
          if (found.problem) throw new Error(found.problem);
          follow(room, found);
          room.append(text("As of " + new Date().toLocaleTimeString("en-GB") + ".", true));
        } catch (error) { button.textContent = said(error); }
      } }, "Work out the critical path");
      room.append(text("Of so many tasks the path is worked out when you ask for it, which takes some seconds.", true), button);
    }
  });
  function follow(room, c) {
    const live = parts.run && parts.run.live;
    room.replaceChildren(
      text(live ? `Of the longest chain of tasks ${P.percent(c.done)} is done. What ended last came after ${P.count(c.tasks)} tasks in a row, which ran for ${P.seconds(c.ran)} and waited ${P.seconds(c.waited)}.`
        : `${P.count(c.tasks)} tasks, each waiting for the one before it, ended last. They ran for ${P.seconds(c.ran)} and waited ${P.seconds(c.waited)} in between.`),
      P.chain(c.steps, c.steps.length ? Math.min(0, c.steps[0].start) : 0, parts.time ? parts.time.end : 1, `The critical path: ${P.count(c.tasks)} tasks`),
      P.bars(c.by_category.slice(0, 8).map((row) => ({ name: `${row.name} (${P.count(row.tasks)})`, value: row.seconds, text: P.seconds(row.seconds), colour: P.colour(row.place) })), "time on the path by category"));
  }
  tabled("failures", "Failures", ["failures"], "Attempts that did not succeed, grouped by what was said of them; numbers and names are left out of the cause.", [
    { label: "cause", text: true }, { label: "kind", text: true }, { label: "attempts", show: P.count }, { label: "tasks given up", show: P.count }, { label: "time lost", show: P.seconds }, { label: "categories", text: true },
    { label: "examples", text: true, show: (list) => make("div", {}, ...list.map(([name, words]) => make("p", {}, make("code", {}, name), ": " + words))) }],
  () => (parts.failures || []).map((f) => [f.text, f.outcome, f.attempts, f.given_up, f.seconds, f.categories.join(", "), f.examples]));

  // ---- single tasks --------------------------------------------------------------------------------------------------

  let listCategory = () => {};
  const mark = (state) => make("span", { class: "state " + state }, state);
  section("tasks", "Tasks", ["progress", "graph"], (room, node) => {
    const search = make("input", { type: "search", "aria-label": "part of a task's name", placeholder: "part of a name" });
    const pick = (label, values) => make("select", { "aria-label": label, onchange: () => load() }, make("option", { value: "" }, label), ...values.map((value) => make("option", { value }, value)));
    const state = pick("every state", ["waiting", "running", "done", "failed"]), category = pick("every category", []);
    const table = P.table([{ label: "task", text: true, show: (v) => taskLink(v[0], v[1]) }, { label: "category", text: true }, { label: "state", show: mark }], [], { label: "tasks" });
    const more = make("button", { class: "hidden", onclick: () => load(true) }, "More"), told = make("p", { class: "soft", role: "status" });
    const form = make("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); load(); } }, search, state, category, make("button", {}, "Find"));
    room.append(form, told, table, more);
    let rows = [], next = null;
    async function load(on) {
      const query = new URLSearchParams({ search: search.value, state: state.value, category: category.value, limit: 50, after: on && next !== null ? next : -1 });
      try {
        const found = await get("tasks?" + query).then((answer) => answer.json());
        rows = on ? rows.concat(found.tasks) : found.tasks;
        next = found.next;
        document.activeElement.blur();
        table.tell(rows.map((task) => [[task.task, task.name], task.category, task.state]));
        told.textContent = found.matching === null ? `${rows.length} shown${next === null ? "" : ", there may be more"}` : `${P.count(found.matching + (on ? rows.length - found.tasks.length : 0))} tasks`;
        more.classList.toggle("hidden", next === null);
      } catch (error) { told.textContent = said(error); }
    }
    listCategory = (name) => { category.value = name; node.scrollIntoView(); load(); };
    let names = "", first = true;
    return (mine) => {
      if (!show(mine, Boolean(parts.progress))) return;
      const known = parts.graph ? parts.graph.nodes.map((n) => n.name) : [];
      if (known.join("\n") !== names) { names = known.join("\n"); category.replaceChildren(category.firstChild, ...known.map((value) => make("option", { value }, value))); }
      if (first) { first = false; load(); }
    };
  });

  const dialog = make("dialog", { "aria-labelledby": "task-head", onclick: (event) => { if (event.target === dialog) dialog.close(); } });
  async function openTask(task) {
    const content = make("div", {}, text("One moment …", true));
    const close = make("button", { onclick: () => dialog.close() }, "Close");
    const name = make("h2", { id: "task-head" }, "Task " + task);
    dialog.replaceChildren(make("div", { class: "title" }, make("div", {}, name), close), content);
    if (!dialog.open) dialog.showModal();
    try {
      const found = await get("tasks/" + task).then((answer) => answer.json());
      name.replaceChildren(found.name);
      content.replaceChildren(...taskPage(found));
    } catch (error) { content.replaceChildren(text(said(error))); }
  }
  function taskPage(task) {
    const written = make("pre", { tabindex: "0", "aria-label": "what it wrote" }), from = make("div"), found = [];
    const facts = make("p", {}, mark(task.state), ` · ${task.category || "no category"} · task ${task.task}`, task.running ? ` · attempt ${task.running.attempt} is running` + (task.running.pid ? ` as process ${task.running.pid}` : "") : "");
    found.push(facts, from);
    if (task.attempts.length) found.push(make("h3", {}, "Attempts"), P.table([{ label: "attempt" }, { label: "outcome", text: true }, { label: "node", text: true }, { label: "started after", show: P.seconds }, { label: "took", show: P.seconds }, { label: "cpu", show: P.seconds },
      { label: "memory", show: or(P.bytes) }, { label: "limit", show: or(P.bytes) }, { label: "made", show: or(P.bytes) }, { label: "what was said", text: true }],
    task.attempts.map((a) => [a.attempt, a.outcome, a.node, a.started, a.ended - a.started, a.cpu, a.memory, a.memory_limit, a.made, a.message]), { label: "attempts" }));
    const several = (title, list) => list.count ? [make("h3", {}, `${title} (${P.count(list.count)})`), make("ul", { class: "several" }, ...list.tasks.map((one) => make("li", {}, taskLink(one.task, one.name), " ", mark(one.state))))] : [];
    found.push(...several("Needs", task.needs), ...several("Needed by", task.needed_by), make("h3", {}, "Output"), written);
    get(`tasks/${task.task}/output`).then((answer) => answer.text()).then((words) => { written.textContent = words || "(nothing)"; }).catch((error) => { written.textContent = said(error); });
    const total = parts.progress ? parts.progress.to_run + parts.progress.up_to_date : 0;
    if (total <= 50000) askWorkflow(task.task, from);
    else from.append(make("button", { onclick: () => askWorkflow(task.task, from) }, "Load the workflow for command, files and why"));
    return found;
  }
  async function askWorkflow(task, room) {
    room.replaceChildren(text("Asking the workflow …", true));
    try {
      const w = await get(`tasks/${task}/workflow`).then((answer) => answer.json()), found = [];
      if (w.why) found.push(make("p", { id: "task-why" }, w.why));
      if (w.problem) found.push(text(w.problem, true));
      if (w.command || w.function) found.push(make("h3", {}, w.command ? "Command" : "Function"), make("pre", { tabindex: "0", id: "task-command" }, w.command || w.function));
      if (w.file) found.push(text([`${w.file}${w.line ? ", line " + w.line : ""}`, ...w.asks.map(([name, amount]) => `${name} ${amount}`), w.retries ? `${w.retries} more attempts` : "", w.timeout ? "at most " + P.seconds(w.timeout) : ""].filter(Boolean).join(" · "), true));
      for (const [title, files] of [["Inputs", w.inputs], ["Outputs", w.outputs]])
        if (files && files.length) found.push(make("h3", {}, title), make("ul", { class: "several" }, ...files.map((file) => make("li", {}, make("code", {}, file)))));
      room.replaceChildren(...found);
    } catch (error) { room.replaceChildren(text(said(error))); }
  }

  section("environment", "Data and environment", ["data", "run"], (room) => {
    const columns = [{ label: "what", text: true }, { label: "value", text: true }];
    const data = P.table(columns, [], { label: "data", narrow: true }), where = P.table(columns, [], { label: "environment", narrow: true });
    room.append(make("div", { class: "side" }, data, where));
    return (mine) => {
      const d = parts.data, r = parts.run;
      if (!show(mine, Boolean(d && r && r.id))) return;
      data.tell([["source files", d.sources ? `${P.count(d.sources)} (${P.bytes(d.source_bytes)})` : "none"], ["made by tasks", P.bytes(d.made)], ["read from disk", P.bytes(d.read)], ["written to disk", P.bytes(d.written)],
        ...(r.cluster ? [["fetched from other nodes", P.bytes(d.fetched)], ["tasks stolen", P.count(d.stolen)], ["tasks pushed", P.count(d.pushed)]] : [])]);
      where.tell([["run", `${r.id} (number ${r.number} in its ledger)`], ["Shoal", r.version], [r.cluster ? "brought from" : "machine", r.host], ["targets", r.targets.join(", ") || "–"], ...r.resources]);
    };
  });

  // ---- all of it -----------------------------------------------------------------------------------------------------

  function draw() {
    asked = false;
    const changed = new Set(dirty);
    dirty.clear();
    head();
    for (const mine of sections) if (mine.needs.some((name) => changed.has(name))) mine.update(mine);
    window.shoalVersion = (window.shoalVersion || 0) + 1;
  }
  function take(event) {
    const fresh = JSON.parse(event.data);
    for (const [name, value] of Object.entries(fresh)) {
      if (value === null) delete parts[name]; else parts[name] = value;
      dirty.add(name.split(".")[0]);
    }
    if (fresh.progress) received = performance.now();
    status.className = "status";
    status.textContent = parts.reading ? `Reading the ledger: ${P.bytes(parts.reading.bytes)}, ${P.count(parts.reading.attempts)} attempts so far` : parts.run && parts.run.live ? "Live" : "";
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }
  function listen() {
    const source = new EventSource("api/v1/events");
    source.onmessage = take;
    source.onerror = () => { status.className = "status lost"; status.textContent = "No answer from the server; trying again."; };
    source.addEventListener("over", () => { source.close(); status.textContent = "The run is over, and the server beside it has gone. 'shoal web' shows it again."; });
  }
  document.getElementById("head").append(make("div", { class: "title" }, make("div", {}, title, about, status), make("div", { class: "tools" }, theme())), heard);
  const entries = make("nav", { "aria-label": "sections" }, make("ul", {}, ...sections.map((mine) => mine.entry)));
  document.getElementById("content").append(entries, ...sections.map((mine) => mine.node), dialog, make("footer", {}, "Everything here comes from the ledger of the run, on this machine."));
  listen();
})();
