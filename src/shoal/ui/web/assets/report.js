/* The page of a report: sections of one run, or a comparison of two runs. plots.js draws. */
"use strict";
(() => {
  const P = Plots, make = P.element;
  const { runs } = P.read(document.getElementById("data").textContent);
  const drawn = [];

  function section(id, title, ...content) {
    return make("section", { id, "aria-labelledby": id + "-head" }, make("h2", { id: id + "-head" }, title), ...content.filter(Boolean));
  }
  const text = (sentence, soft) => make("p", { class: soft ? "soft" : "" }, sentence);
  const change = (by) => Math.abs(by) < 0.0005 ? "same" : by > 4 ? `${P.number(1 + by)} times` : (by > 0 ? "+" : "−") + P.percent(Math.abs(by));
  const moment = (t) => new Date(t * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

  // ---- page header ----------------------------------------------------------------------------------------------------

  function theme() {
    const root = document.documentElement;
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const button = make("button", { "aria-label": "switch between light and dark", onclick: () => {
      root.dataset.theme = dark() ? "light" : "dark";
      say();
      for (const gantt of drawn) gantt.draw();
    } });
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
    say();
    return button;
  }
  function chip(run) {
    const how = run.run.outcome;
    const kind = how === "ok" ? "ok" : how === "running" ? "live" : "bad";
    return make("span", { class: "chip " + kind }, how === "ok" ? "completed" : how.replace(/^it was /, ""));
  }
  function head() {
    const names = [...new Set(runs.map((run) => run.run.workflow))].join(" and ");
    const about = runs.map((run) => make("p", { class: "soft" }, chip(run), ` Run ${run.run.id}, started ${moment(run.run.began)} on ${run.run.cluster ? P.many(run.run.nodes, "node") : run.run.host}`));
    const title = make("div", {}, make("h1", {}, names, " ", make("small", {}, runs.length > 1 ? "two runs compared" : "run report")), ...about);
    document.getElementById("head").append(make("div", { class: "title" }, title, theme()));
  }
  function navigation(sections) {
    return make("nav", { "aria-label": "sections" }, make("ul", {}, ...sections.map((part) =>
      make("li", {}, make("a", { href: "#" + part.id }, part.querySelector("h2").textContent)))));
  }

  // ---- one run ------------------------------------------------------------------------------------------------------

  function tiles(run) {
    const f = run.figures, told = run.progress;
    const tile = (value, name) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name));
    const found = [tile(P.seconds(told.elapsed), "wall time"), tile(P.count(told.done), told.done === 1 ? "task done" : "tasks done")];
    if (told.failed) found.push(tile(P.count(told.failed), told.failed === 1 ? "task failed" : "tasks failed"));
    if (f.capacity) found.push(tile(P.percent(f.utilisation), `of ${P.number(f.cores)} ${f.cores === 1 ? "core" : "cores"} ${f.crowded ? "busy" : "allocated"}`));
    if (run.critical) found.push(tile(P.seconds(run.critical.ran), "on the critical path"));
    if (run.replayed) found.push(tile(P.seconds(run.replayed.bound), run.figures.crowded ? `lower bound with ${P.number(run.replayed.cores)} concurrent tasks` : "lower bound on these cores"));
    if (told.left) found.push(tile(P.estimate(told.left), `remaining (${P.estimate(told.least)} to ${P.estimate(told.most)})`));
    return make("div", { class: "tiles" }, ...found);
  }
  function story(run, id) {
    return section(id("summary"), "Summary", make("div", { class: "two" },
      make("div", {}, make("h3", {}, "What happened"), ...run.summary.map((sentence) => text(sentence))),
      make("div", {}, make("h3", {}, "Recommendations"), make("ul", { class: "advice" }, ...run.advice.map((sentence) => make("li", {}, sentence))))));
  }
  function utilisation(run, id) {
    const t = run.timeline, f = run.figures;
    const by = (rows) => rows.map((values, i) => ({ name: run.shown[i], values, colour: P.colour(i) })).filter((s) => s.values.some((v) => v > 0));
    const parts = [{ name: "successful attempts", value: f.busy, colour: "var(--good)" }, { name: "failed attempts", value: f.lost, colour: "var(--bad)" }];
    parts.push({ name: "allocated but not used", value: f.idle_within_tasks, colour: "var(--accent)" });
    if (f.idle_nothing_ready !== null) {
      parts.push({ name: "idle while tasks were ready", value: f.idle_although_ready, colour: "var(--ready)" }, { name: "idle, no task ready", value: f.idle_nothing_ready, colour: "var(--idle)" });
    } else parts.push({ name: "idle", value: f.idle - f.idle_within_tasks, colour: "var(--idle)" });
    const total = parts.reduce((sum, part) => sum + part.value, 0);
    for (const part of parts) part.text = P.percent(part.value / (total || 1));
    const cores = P.stacked({ ...t, series: [...by(t.cores), ...P.underway(t.untold)], limit: t.capacity, limitName: "cores available", idle: true, unit: P.number, high: 260,
      caption: `Cores ${f.crowded ? "busy" : "allocated"}, by category`, label: `Cores in use over time, by category; ${P.percent(f.utilisation)} of ${P.number(f.cores)} cores on average` });
    const memory = t.memory.some((row) => row.some((v) => v > 0)) ? P.stacked({ ...t, series: by(t.memory), unit: P.bytes, high: 190,
      limit: f.memory_there && f.memory_most > 0.25 * f.memory_there ? t.capacity.map(() => f.memory_there) : null, limitName: "memory available",
      caption: "Memory in use, by category", label: `Memory in use over time, by category; peak ${P.bytes(f.memory_most)}` }) : null;
    return section(id("utilisation"), "Utilisation", make("h3", {}, "Core time by use"), P.whole(parts.filter((part) => part.value > 0.0005 * total), "core time"), cores, memory, states(run));
  }
  function states(run) {
    const t = run.timeline;
    const known = t.ready.length > 0;
    const waiting = t.running.map((r, i) => Math.max(0, t.total - t.done[i] - t.failed[i] - r - (known ? t.ready[i] : 0)));
    const series = [{ name: "done", values: t.done, colour: "var(--good)" }, { name: "failed", values: t.failed, colour: "var(--bad)" }, { name: "running", values: t.running, colour: "var(--accent)" }];
    if (known) series.push({ name: "ready", values: t.ready, colour: "var(--ready)" });
    series.push({ name: known ? "waiting" : "not started", values: waiting, colour: "var(--idle)" });
    return P.stacked({ ...t, series: series.filter((s) => s.values.some((v) => v > 0)), unit: P.number, high: 190, caption: "Tasks by state", label: "Tasks by state over time" });
  }
  function gantt(run, id) {
    const chart = P.gantt(run.gantt, run.shown, `Gantt chart of attempts on ${run.gantt.rows.length} rows of nodes and slots over ${P.seconds(run.gantt.end)}; the node table has the numbers`);
    drawn.push(chart);
    const how = run.gantt.kind === "cells" ? "The colour of a cell shows the category with most core time in it; paler cells were more idle." : "Each bar is one attempt. Hover over a bar for details.";
    return section(id("gantt"), "Task timeline", text(how, true), chart.node, make("h3", {}, "Nodes"), nodes(run), text(P.cutOff(run.nodes.length, run.run.nodes), true));
  }
  function nodes(run) {
    const steals = run.nodes.some((n) => n.stolen || n.pushed), fetched = run.nodes.some((n) => n.fetched);
    const columns = [["node", (n) => n.name, { text: true }], ["cores", (n) => n.cores, { show: P.number }], ["memory", (n) => n.memory, { show: (v) => v ? P.bytes(v) : "–" }],
      ["tasks", (n) => n.tasks, { show: P.count }], ["failed attempts", (n) => n.failed, { show: P.count }],
      ["busy", (n) => n.share, { show: (v) => make("span", {}, P.meter(v), P.percent(v)) }], ["core time", (n) => n.busy, { show: P.seconds }], ["output", (n) => n.made, { show: P.bytes, help: "size of the files that its tasks made" }]];
    if (fetched) columns.push(["fetched", (n) => n.fetched, { show: P.bytes }]);
    if (run.nodes.some((n) => n.hits)) columns.push(["cache hits", (n) => n.hits / ((n.hits + n.fetched_files) || 1), { show: P.percent, help: "share of input files that were already on the node" }]);
    if (steals) columns.push(["stolen", (n) => n.stolen, { show: P.count, help: "tasks that it took from other nodes" }], ["received", (n) => n.pushed, { show: P.count, help: "tasks that other nodes pushed to it" }]);
    if (run.nodes.some((n) => n.left)) columns.push(["connected for", (n) => n.present, { show: P.seconds }]);
    return P.table(columns.map(([label, , rest]) => ({ label, ...rest })), run.nodes.map((n) => columns.map(([, get]) => get(n))), { label: "nodes" });
  }
  function categories(run, id) {
    const place = new Map(run.shown.map((name, i) => [name, i]));
    const named = (name) => make("span", {}, P.swatch(P.colour(place.has(name) ? place.get(name) : run.shown.length - 1)), name);
    const or = (show) => (v) => v === null || v === 0 ? "–" : show(v);
    const held = new Map(run.categories.map((c) => [c.name, P.range(c.cores_least, c.cores_most)]));
    const columns = [
      [{ label: "category", show: named, text: true }, (c) => c.name], [{ label: "done", show: P.count }, (c) => c.done], [{ label: "failed", show: P.count }, (c) => c.failed],
      [{ label: "retries", show: P.count }, (c) => c.retries], [{ label: "mean", show: or(P.seconds) }, (c) => c.mean], [{ label: "median", show: or(P.seconds) }, (c) => c.median],
      [{ label: "95 %", show: or(P.seconds) }, (c) => c.p95], [{ label: "longest", show: or(P.seconds) }, (c) => c.longest], [{ label: "core time", show: P.seconds }, (c) => c.core_seconds],
      [{ label: "lost", show: or(P.seconds), help: "core time of failed attempts" }, (c) => c.core_seconds_lost],
      [{ label: "cores per task", show: (v, [name]) => held.get(name), help: "cores allocated to one task" }, (c) => c.cores], [{ label: "cores busy", show: P.number, help: "mean CPU use of one task, in cores" }, (c) => c.cores_used],
      [{ label: "memory allocated", show: or(P.bytes), help: "per task" }, (c) => c.memory_limit || c.memory_declared], [{ label: "peak memory", show: or(P.bytes), help: "the highest of all attempts" }, (c) => c.most_memory],
      [{ label: "unused", show: (v) => v === null ? "–" : make("span", { class: v > 0.5 ? "warned" : "" }, P.percent(v)), help: "share of the allocated memory that was not used, over time" }, (c) => c.memory_waste]];
    const rows = run.categories.map((c) => columns.map(([, get]) => get(c)));
    return section(id("categories"), "Categories", text("Resources given and used, run times and retries of each category.", true), P.table(columns.map(([head]) => head), rows, { label: "categories" }));
  }
  function path(run, id) {
    const c = run.critical, r = run.replayed;
    const found = [];
    if (c) {
      found.push(text(c.tasks === 1 ? `The last task to finish had no dependencies in this run. It waited ${P.seconds(c.waited)} and ran for ${P.seconds(c.ran)}.`
        : `The critical path has ${P.count(c.tasks)} tasks: they ran for ${P.seconds(c.ran)} and waited ${P.seconds(c.waited)} in total.`),
        P.chain(c.steps, 0, run.timeline.end, `The critical path: ${P.many(c.tasks, "task")}`),
        P.bars(c.by_category.slice(0, 8).map((row) => ({ name: `${row.name} (${P.count(row.tasks)})`, value: row.seconds, text: P.seconds(row.seconds), colour: P.colour(row.place) })), "time on the critical path, by category"),
        make("details", {}, make("summary", {}, c.steps.length < c.tasks ? `The ${c.steps.length} longest steps as a table` : "The steps as a table"),
          P.table([{ label: "task", text: true }, { label: "category", text: true }, { label: "waited", show: P.seconds }, { label: "start", show: P.seconds }, { label: "run time", show: P.seconds }],
            c.steps.map((s) => [s.name, s.category, s.waited, s.start, s.end - s.start]), { label: "steps of the critical path" })));
    } else found.push(text(run.run.linked ? "No task has finished, so there is no critical path."
      : "The ledger has no dependencies, so the critical path is not known. This is so for Petri nets and for ledgers of early versions.", true));
    if (r) found.push(make("h3", {}, "What if"), text(r.method === "list schedule"
      ? "Estimated by list scheduling of the recorded tasks, calibrated with the actual run. Only cores are modelled."
      : "Estimated from a lower bound (the longest chain, or total work divided by cores), calibrated with the actual run.", true),
      P.bars([{ name: "actual", value: r.actual, text: P.seconds(r.actual), colour: "var(--soft)" },
        ...r.supposed.map((s) => ({ name: s.what, value: s.seconds, text: `${P.seconds(s.seconds)} (${change(s.seconds / r.actual - 1)})` }))], "what if"));
    return section(id("path"), "Critical path", ...found);
  }
  function predicted(run, id) {
    const r = run.replayed;
    if (!r) return null;
    const places = run.figures.crowded ? `${P.number(r.cores)} concurrent tasks` : `${P.number(r.cores)} cores`;
    const why = { work: "total work divided by their number", path: "the longest chain of tasks", depth: "work that has to wait for dependencies" }[r.bound_by];
    const rows = [{ name: "lower bound", value: r.bound, text: P.seconds(r.bound), colour: "var(--good)" }];
    /* The result of the simulated scheduler if there is one, else of list scheduling. */
    const again = r.simulated ? r.simulated.seconds : r.method === "list schedule" ? r.computed : null;
    if (again !== null) rows.push({ name: r.simulated ? "simulated with Shoal's scheduler" : "list schedule", value: again, text: P.seconds(again) });
    if (r.foreseen !== null) rows.push({ name: "predicted from earlier runs", value: r.foreseen, text: P.seconds(r.foreseen), colour: "var(--warn)" });
    rows.push({ name: "actual", value: r.actual, text: P.seconds(r.actual), colour: "var(--soft)" });
    const times = r.actual / (r.bound || r.actual);
    const sentences = [`The makespan, from the start of the first task to the end of the last, was ${P.seconds(r.actual)}: ${times < 1.005 ? "equal to" : P.number(times) + " times"} the lower bound for ${places} (${why}).`];
    if (again !== null) {
      const crowded = run.figures.crowded;
      const where = r.simulated && r.simulated.nodes > 1 ? `on ${P.count(r.simulated.nodes)} nodes` : `${crowded ? "with" : "on"} ${places}`;
      const rest = crowded ? "due to the throttle, which allowed fewer tasks at times, or to overhead between tasks" : r.simulated ? "due to overhead between tasks, or to effects that are not simulated" : "due to overhead between tasks, or to limits other than cores";
      const how = r.simulated ? `A simulation of the recorded tasks ${where}, with Shoal's scheduler and no overhead between tasks, takes` : `List scheduling of the recorded tasks ${where} takes`;
      const gap = 1 - again / r.actual;
      sentences.push(`${how} ${P.seconds(again)}${gap > 0.005 ? `: ${P.percent(gap)} of the makespan is ${rest}.` : ", the same as the actual run."}`);
    }
    if (r.foreseen !== null) sentences.push(`The prediction from earlier runs was ${P.seconds(r.foreseen)}.`);
    return section(id("predicted"), "Predicted and actual", text(sentences.join(" ")), P.bars(rows, "predicted and actual makespan"));
  }
  function files(run, id) {
    const d = run.data;
    const rows = [["source files", d.sources ? `${P.count(d.sources)} (${P.bytes(d.source_bytes)})` : "none"], ["output of tasks", P.bytes(d.made)], ["read by tasks from disk", P.bytes(d.read)], ["written by tasks to disk", P.bytes(d.written)]];
    const found = [P.table([{ label: "data", text: true }, { label: "amount" }], rows, { label: "data", narrow: true })];
    if (run.run.cluster) found.push(...brought(d), d.stolen || d.pushed
      ? text(`Nodes stole ${P.many(d.stolen, "task")} from each other and pushed ${P.count(d.pushed)} to the nodes that hold their data; see the node table.`)
      : text("No tasks moved between nodes, or the nodes did not report it.", true));
    else found.push(text("All files were on this machine. Reads from the page cache are not counted.", true));
    return section(id("data"), run.run.cluster ? "Data and stealing" : "Data", ...found);
  }
  /* Source of input files, if the nodes share no file system. */
  function brought(d) {
    if (!d.fetched_files && !d.hits) return [text("Nodes transferred no files: they use a shared file system, or did not report it.", true)];
    const all = d.hits + d.fetched_files, parts = [["already on the node", d.hits, d.hit_bytes, "var(--good)"], ["fetched", d.fetched_files, d.fetched, "var(--accent)"]];
    return [make("h3", {}, "Source of input files"),
      P.whole(parts.filter(([, n]) => n).map(([name, n, size, colour]) => ({ name, value: n, colour, text: `${P.many(n, "read")}, ${P.bytes(size)}` })), "source of input files"),
      text(`${P.percent(d.hits / all)} of ${P.many(all, "read")} of input files found the file on the node. ${P.bytes(d.fetched)} were transferred between nodes, ${P.bytes(d.hit_bytes)} were read on the same node.`)];
  }
  function throttle(run, id) {
    if (!run.throttle.length) return null;
    const called = (curve) => (curve.category || "all categories") + (curve.node ? " on " + curve.node : "");
    const last = (curve) => curve.points[curve.points.length - 1];
    const steady = (curve) => curve.points.every((p) => p[1] === curve.points[0][1]);
    const moved = run.throttle.filter((curve) => !steady(curve)), still = run.throttle.filter(steady);
    const shown = moved.slice(0, 12).map((curve) => {
      const name = called(curve);
      const at = (k) => curve.points.map((p) => [p[0], p[k]]);
      const begin = 0, end = run.timeline.end;
      const curves = [P.lines({ begin, end, unit: P.number, caption: "Concurrent tasks", label: `Limit and number of running tasks of ${name}`, series: [{ name: "limit", points: at(1), colour: P.colour(0) }, { name: "running", points: at(2), colour: P.colour(2) }] }),
        P.lines({ begin, end, unit: P.number, caption: "Tasks per second", label: `Throughput of ${name}`, series: [{ name: "tasks per second", points: at(5), colour: P.colour(4) }] })];
      if (curve.dominant) curves.push(P.lines({ begin, end, unit: P.percent, top: 1, caption: `Utilisation of ${curve.dominant}`, label: `Utilisation of ${curve.dominant} over time`, series: [{ name: curve.dominant, points: at(4), colour: P.colour(1) }] }));
      return make("div", {}, make("h3", {}, name), make("div", { class: "side" }, ...curves));
    });
    const more = moved.length > shown.length ? text(`${moved.length - shown.length} more limits changed`, true) : null;
    const same = still.length ? [make("h3", {}, moved.length ? "Constant limits" : "All limits stayed constant"),
      P.table([{ label: "category", text: true }, { label: "limit" }, { label: "running" }, { label: "ready" }, { label: "reason", text: true, long: true }],
        still.map((curve) => [called(curve), last(curve)[1] === null ? "none" : P.count(last(curve)[1]), P.count(last(curve)[2]), P.count(last(curve)[3]), last(curve)[6]]), { label: "constant limits" })] : [];
    return section(id("throttle"), "Throttle", text("Limit on concurrent tasks of each category, and its effect.", true), ...shown, more, ...same);
  }
  function failures(run, id) {
    if (!run.failures.length) return null;
    const rows = run.failures.map((f) => [f.text, f.outcome, f.attempts, f.given_up, f.seconds, f.categories.join(", ") + (f.other_categories ? ` and ${f.other_categories} more` : ""), f.examples]);
    return section(id("failures"), "Failures", text("Failed attempts, grouped by error message without numbers and names.", true),
      P.table([{ label: "cause", text: true }, { label: "kind", text: true }, { label: "attempts", show: P.count }, { label: "failed tasks", show: P.count }, { label: "time lost", show: P.seconds },
        { label: "categories", text: true }, { label: "examples", text: true, show: P.examples }], rows, { label: "failures" }));
  }
  function environment(run, id) {
    const r = run.run;
    const rows = [["workflow", r.workflow], ["run", r.id + ` (number ${r.number} in the ledger)`], ["start", moment(r.began)], ["end", moment(r.until)], ["Shoal", r.version], [r.cluster ? "submitted from" : "machine", r.host],
      ["targets", r.targets.join(" ") || "default"], ...(r.cluster ? [["nodes", P.count(r.nodes)], ["cores in total", P.number(r.cores)]] : []), ...r.resources.map(([name, amount]) => [r.cluster ? `${name} (largest node)` : name, amount])];
    return section(id("environment"), "Environment", P.table([{ label: "what", text: true }, { label: "value", text: true }], rows, { label: "environment", narrow: true }));
  }
  function report(run, prefix) {
    const id = (name) => prefix + name;
    return [story, utilisation, gantt, categories, path, predicted, files, throttle, failures, environment].map((part) => part(run, id)).filter(Boolean);
  }

  // ---- two runs -----------------------------------------------------------------------------------------------------

  function compared([a, b]) {
    const difference = (x, y) => x === y ? "same" : x ? change(y / x - 1) : "–";
    const row = (name, x, y, show) => [name, show(x), show(y), typeof x === "number" && typeof y === "number" ? difference(x, y) : "–"];
    const unrun = ({ progress: p }) => p.waiting + p.cannot_run;
    const held = a.figures.crowded || b.figures.crowded ? "busy" : "allocated";
    const points100 = (d) => Math.abs(d) < 0.0005 ? "same" : `${d > 0 ? "+" : "−"}${P.number(Math.abs(Math.round(1000 * d) / 10))} points`;
    const rows = [row("wall time", a.progress.elapsed, b.progress.elapsed, P.seconds), row("tasks done", a.progress.done, b.progress.done, P.count),
      row("tasks failed", a.progress.failed, b.progress.failed, P.count), row("tasks not run", unrun(a), unrun(b), P.count), row("tasks cancelled", a.progress.cancelled, b.progress.cancelled, P.count), row("cores", a.figures.cores, b.figures.cores, P.number), ["core utilisation", P.percent(a.figures.utilisation), P.percent(b.figures.utilisation), points100(b.figures.utilisation - a.figures.utilisation)],
      row("core time of successful attempts", a.figures.busy, b.figures.busy, P.seconds), row("core time of failed attempts", a.figures.lost, b.figures.lost, P.seconds), row("idle core time", a.figures.idle, b.figures.idle, P.seconds),
      row("peak memory in use", a.figures.memory_most, b.figures.memory_most, P.bytes)];
    if (a.critical && b.critical) rows.push(row("run time of the critical path", a.critical.ran, b.critical.ran, P.seconds), row("waiting time of the critical path", a.critical.waited, b.critical.waited, P.seconds));
    if (a.replayed && b.replayed) rows.push(row("lower bound", a.replayed.bound, b.replayed.bound, P.seconds));
    const end = Math.max(a.timeline.end, b.timeline.end), names = ["first", "second"];
    const points = (t, values) => values.map((v, i) => [t.begin + (t.end - t.begin) * i / t.buckets, v]).concat([[t.end, null]]);
    const sum = (t) => t.running.map((_, i) => t.cores.reduce((total, values) => total + values[i], 0));
    const series = (get) => [a, b].map((run, i) => ({ name: `${names[i]} (${run.run.id})`, points: points(run.timeline, get(run.timeline)), colour: P.colour(i) }));
    const by = new Map([...a.categories, ...b.categories].map((c) => [c.name, [null, null]]));
    a.categories.forEach((c) => { by.get(c.name)[0] = c; });
    b.categories.forEach((c) => { by.get(c.name)[1] = c; });
    const each = [...by].map(([name, [x, y]]) => [name, x && x.done, y && y.done, x && x.mean, y && y.mean, x && y && x.mean ? y.mean / x.mean - 1 : null, x && x.most_memory, y && y.most_memory]);
    const or = (show) => (v) => v === null || v === 0 ? "–" : show(v);
    return section("compared", "Comparison", text(verdict(a, b)), P.table([{ label: "metric", text: true }, { label: "first" }, { label: "second" }, { label: "change" }], rows, { label: "comparison" }),
      P.lines({ begin: 0, end, series: series((t) => t.done), unit: P.number, caption: "Tasks done", label: "Tasks done over time in both runs" }),
      P.lines({ begin: 0, end, series: series(sum), unit: P.number, caption: `Cores ${held}`, label: `Cores ${held} over time in both runs` }), make("h3", {}, "Categories"),
      P.table([{ label: "category", text: true }, { label: "tasks, first", show: or(P.count) }, { label: "second", show: or(P.count) }, { label: "mean, first", show: or(P.seconds) }, { label: "second", show: or(P.seconds) },
        { label: "change", show: (v) => v === null ? "–" : change(v) }, { label: "memory, first", show: or(P.bytes) }, { label: "second", show: or(P.bytes) }], each, { label: "categories of both runs" }));
  }
  function verdict(a, b) {
    const x = a.progress.elapsed, y = b.progress.elapsed;
    const how = Math.abs(y / x - 1) < 0.02 ? "took about as long as" : y < x ? `was ${P.percent(1 - y / x)} shorter than` : y / x > 5 ? `took ${P.number(y / x)} times as long as` : `was ${P.percent(y / x - 1)} longer than`;
    const [one, two] = [a.run.outcome, b.run.outcome], said = [];
    if (one !== "ok" || two !== "ok") {
      const which = one !== "ok" && two !== "ok" ? `Neither run completed (${one}, ${two})` : one !== "ok" ? `The first run did not complete (${one})` : `The second run did not complete (${two})`;
      said.push(which + ", so their wall times cannot be compared.");
    }
    if (x > 0 && y > 0) said.push(`The second run ${how} the first: ${P.seconds(y)} instead of ${P.seconds(x)}.`);  // a run may have been killed at its start
    if (a.figures.cores !== b.figures.cores) said.push(`It used ${P.number(b.figures.cores)} cores, the first run ${P.number(a.figures.cores)}.`);
    const parts = [["successful attempts", a.figures.busy, b.figures.busy], ["idle cores", a.figures.idle, b.figures.idle], ["failed attempts", a.figures.lost, b.figures.lost]];
    const [name, from, to] = parts.reduce((most, part) => Math.abs(part[2] - part[1]) > Math.abs(most[2] - most[1]) ? part : most);
    if (from !== to) said.push(`The largest change in core time is in ${name}: from ${P.seconds(from)} to ${P.seconds(to)}.`);
    if (a.progress.done !== b.progress.done) said.push(`The amount of work differs: ${P.count(a.progress.done)} tasks done in the first run, ${P.count(b.progress.done)} in the second.`);
    return said.join(" ");
  }

  // ---- whole page ---------------------------------------------------------------------------------------------------

  head();
  const main = document.getElementById("content");
  if (runs.length === 1) {
    const sections = report(runs[0], "");
    main.append(navigation(sections), tiles(runs[0]), ...sections);
  } else {
    const both = compared(runs);
    const apart = runs.map((run, i) => {
      const details = make("details", {}, make("summary", {}, make("b", {}, `Full report of the ${["first", "second"][i]} run, ${run.run.id}`)));
      details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(tiles(run), ...report(run, `run${i + 1}-`)); });
      return details;
    });
    main.append(both, ...apart);
  }
  main.append(make("footer", {}, `Generated by Shoal ${runs[0].run.version} from the run's ledger. This file is self-contained.`));
})();
