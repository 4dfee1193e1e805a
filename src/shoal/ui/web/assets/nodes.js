/* Node cards side by side: allocated resources, queues and transfers of each node; bars of one kind share one scale.
   Independent of the source of the figures. Data is inserted as text, never as markup. */
"use strict";
const NodeMap = (() => {
  const P = Plots, make = P.element;
  const MANY = 24;
  const QUEUES = [["wait", "waiting", "var(--soft)", "tasks that cannot start yet: inputs are in transfer, a retry is delayed, or no node can run them"], ["local", "local", "var(--local)", "ready tasks that stay on this node"], ["shared", "shared", "var(--ready)", "ready tasks that other nodes may steal"]];
  const HELD = [["cores", "var(--accent)", "allocated to tasks"], ["memory", "var(--good)", "of the machine, in use by all processes"]];
  const known = (value) => value !== null && value !== undefined;
  const plural = P.many;

  /* One line of a card: a name, a bar and its value. */
  function line(name, colour, help) {
    const label = make("span", { class: "what" }, name), fill = make("i"), value = make("span", { class: "value" });
    fill.style.background = colour;
    const node = make("div", { class: "line", title: help || false }, label, make("span", { class: "track", "aria-hidden": "true" }, fill), value);
    return { node, tell(share, words, named) {
      const there = known(share);
      node.classList.toggle("hidden", !there);
      if (!there) return;
      fill.style.width = Math.max(0, Math.min(100, 100 * share)) + "%";
      value.textContent = words;
      if (named) label.textContent = named;
    } };
  }
  function card() {
    const name = make("h3"), chip = make("span", { class: "chip hidden" }), head = make("div", { class: "node-head" }, name, chip);
    const [cores, memory] = HELD.map(([label, colour, help]) => line(label, colour, help));
    const queues = QUEUES.map(([, label, colour, help]) => line(label, colour, help));
    const about = make("p", { class: "soft about" }), trouble = make("p", { class: "trouble" }), moved = make("p", { class: "soft moved" });
    const node = make("div", { class: "node", role: "listitem" }, head, about, trouble, cores.node, memory.node, ...queues.map((queue) => queue.node), moved);
    function tell(row, most, alone) {
      name.textContent = row.name;
      chip.className = "chip " + (row.chip || "hidden");
      chip.textContent = row.state || "";
      node.classList.toggle("away", Boolean(row.left));
      node.dataset.chip = row.chip || "";
      const there = known(row.running);
      if (there) cores.tell(row.cores ? row.cores_held / row.cores : 0, `${P.number(row.cores_held)} of ${P.number(row.cores)}`, "cores");
      else cores.tell(known(row.share) ? row.share : null, known(row.share) ? P.percent(row.share) : "", "busy");
      memory.tell(row.memory_used || null, P.percent(row.memory_used || 0));
      QUEUES.forEach(([key], i) => queues[i].tell(there && known(row[key]) ? row[key] / most : null, P.count(row[key] || 0), alone ? { wait: known(row.local) ? "waiting" : "not started", local: "ready" }[key] : undefined));
      about.textContent = row.about || (there ? runs(row) : row.tasks ? plural(row.tasks, "task") + " done" : "");
      trouble.textContent = row.trouble || "";
      moved.textContent = told(row).join(" · ");
      node.title = [row.name, row.state, about.textContent, trouble.textContent, moved.textContent].filter(Boolean).join("\n");
    }
    return { node, tell };
  }
  /* The running tasks of a node in words; `doing` has the counts by category. */
  function runs(row) {
    const what = (row.doing || []).map(([name, n]) => `${P.count(n)} ${name}`).join(", ");
    if (!row.running && row.wait && row.cores_held) return "waiting for inputs";
    return `${P.count(row.running)} running` + (what && row.running ? ": " + what : "");
  }
  /* What a node received from others, in words. */
  function told(row) {
    const found = [], reads = (row.hits || 0) + (row.fetched_files || 0);
    if (row.stolen) found.push(plural(row.stolen, "task") + " stolen");
    if (row.pushed) found.push(P.count(row.pushed) + " received");
    if (row.fetched) found.push(P.bytes(row.fetched) + " fetched");
    if (reads) found.push(`${P.percent(row.hits / reads)} of ${plural(reads, "input")} already on the node`);
    return found;
  }
  /* `map.tell(rows)`: by name {cores, cores_held, memory_used, running, wait, local, shared, ...}; null means unknown. */
  function map(label) {
    const cards = new Map(), legend = make("ul", { class: "legend" }), room = make("div", { class: "nodes", role: "list", "aria-label": label });
    const node = make("div", {}, legend, room);
    for (const [name, colour, help] of HELD) legend.append(make("li", { class: "held" }, P.swatch(colour), `${name}: ${help}`));
    for (const [, name, colour, help] of QUEUES) legend.append(make("li", {}, P.swatch(colour), `${name}: ${help}`));
    node.tell = (rows) => {
      const most = Math.max(1, ...rows.flatMap((row) => QUEUES.map(([key]) => row[key] || 0))), alone = rows.length === 1 && !known(rows[0].shared);
      const gone = new Set(cards.keys());
      rows.forEach((row, at) => {
        gone.delete(row.name);
        if (!cards.has(row.name)) cards.set(row.name, card());
        const mine = cards.get(row.name);
        if (room.children[at] !== mine.node) room.insertBefore(mine.node, room.children[at] || null);
        mine.tell(row, most, alone);
      });
      for (const name of gone) { cards.get(name).node.remove(); cards.delete(name); }
      node.classList.toggle("dense", rows.length > MANY);
      legend.classList.toggle("hidden", alone || !rows.some((row) => known(row.running)));
    };
    return node;
  }
  return { map, runs };
})();
