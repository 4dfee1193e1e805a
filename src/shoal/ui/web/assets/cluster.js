/* The live page of a cluster: nodes and their activity, problems, runs, and missing nodes with the reasons.
   Data from the cluster is inserted as text, never as markup. frame.js receives the parts. */
"use strict";
(() => {
  const P = Plots, make = P.element;
  const { parts, section, show, text, rowsOf, title, about, heard } = Frame;
  const CHIPS = { busy: "live", idle: "plain", ending: "warn", silent: "bad", lost: "bad", left: "plain", new: "plain", "not known": "plain" };
  const moment = (at) => new Date(at * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
  const now = () => Date.now() / 1000;
  const time = (since) => P.seconds(Math.max(0, Math.round(now() - since)));
  const many = P.many;

  function head() {
    const c = parts.cluster;
    if (!c) return;
    title.replaceChildren(c.name, " ", make("span", { class: "chip " + (c.live ? "ok" : "bad") }, c.live ? "online" : "not responding"));
    about.textContent = `Cluster of ${many(c.nodes, "node")} with ${P.number(c.cores)} ${c.cores === 1 ? "core" : "cores"}`;
    document.title = `${c.name} · ${many(c.nodes, "node")}`;
  }

  section("overview", "Overview", ["cluster", "runs"], (room) => {
    const tiles = make("div", { class: "tiles" }), named = {}, bar = make("div");
    for (const [key, told] of [["nodes", "nodes"], ["held", "cores allocated"], ["running", "running tasks"], ["queued", "queued tasks"], ["runs", "runs"], ["missing", "missing nodes"]]) {
      const value = make("b"), under = make("span", {}, told);
      named[key] = { value, under, tile: make("div", { class: "tile", id: "tile-" + key }, value, under) };
      tiles.append(named[key].tile);
    }
    room.append(bar, tiles);
    let spoken = "";
    return (mine) => {
      const c = parts.cluster;
      if (!show(mine, Boolean(c))) return;
      bar.replaceChildren(P.whole([{ name: "allocated cores", value: c.cores_held, colour: "var(--accent)", text: P.number(c.cores_held) }, { name: "free", value: Math.max(0, c.cores - c.cores_held), colour: "var(--idle)", text: P.number(Math.max(0, c.cores - c.cores_held)) }], "cores"));
      named.nodes.value.textContent = P.count(c.nodes);
      named.held.value.textContent = P.number(c.cores_held);
      named.held.under.textContent = `of ${P.number(c.cores)} cores allocated`;
      named.running.value.textContent = P.count(c.running);
      named.queued.value.textContent = P.count(c.queued);
      const going = (parts.runs || []).filter((run) => run.state !== "ended").length;
      named.runs.value.textContent = P.count(going);
      named.runs.under.textContent = going === 1 ? "run" : "runs";
      named.nodes.under.textContent = c.nodes === 1 ? "node" : "nodes";
      named.missing.value.textContent = P.count(c.missing);
      named.missing.tile.classList.toggle("hidden", !c.missing);
      const words = c.live ? many(c.nodes, "node") + " online" : "The cluster does not respond.";
      if (words !== spoken) heard.textContent = spoken = words;
    };
  });
  section("trouble", "Problems", ["troubles"], (room) => {
    const list = make("ul", { class: "advice", role: "alert" });
    room.append(list);
    return (mine) => {
      const found = parts.troubles || [];
      if (!show(mine, found.length > 0)) return;
      if (list.textContent !== found.join("")) list.replaceChildren(...found.map((sentence) => make("li", {}, sentence)));
    };
  });

  /* The activity of a node in words. */
  function doing(row) {
    const found = [];
    if (row.left) return "";
    if (row.running || row.cores_held) found.push(NodeMap.runs(row));
    else if (row.idle_since !== null && row.state === "idle") found.push(`idle for ${time(row.idle_since)}`);
    found.push(`up for ${time(row.since)}`);
    return found.join(" · ");
  }
  section("nodes", "Nodes", ["nodes", "cluster"], (room) => {
    const map = NodeMap.map("nodes of the cluster"), none = text("No nodes.", true), or = (display) => (v) => v === null || v === 0 ? "–" : display(v);
    const table = P.table([{ label: "node", text: true }, { label: "number" }, { label: "state", text: true }, { label: "group", text: true }, { label: "joined", text: true, show: moment }, { label: "resources", text: true }, { label: "labels", text: true }, { label: "address", text: true },
      { label: "running", show: or(P.count) }, { label: "waiting", show: or(P.count) }, { label: "local", show: or(P.count) }, { label: "shared", show: or(P.count) }, { label: "fetched", show: or(P.bytes) }, { label: "stolen", show: or(P.count) }, { label: "received", show: or(P.count) }, { label: "run", text: true }], [], { label: "nodes" });
    const rest = text("", true);
    room.append(none, map, rest, make("details", {}, make("summary", {}, "Show as a table"), table));
    const tell = () => map.tell(rowsOf("nodes").map((row) => ({ ...row, chip: CHIPS[row.state], about: doing(row), trouble: row.trouble.join("; ") })));
    setInterval(() => { if (rowsOf("nodes").length) tell(); }, 1000);
    return (mine) => {
      const found = rowsOf("nodes");
      if (!show(mine, Boolean(parts.cluster))) return;
      none.classList.toggle("hidden", found.length > 0);
      rest.textContent = P.cutOff(found.filter((row) => !row.left).length, parts.cluster.nodes);
      map.classList.toggle("hidden", !found.length);
      tell();
      table.tell(found.map((n) => [n.name, n.number, n.state, n.group || "–", n.since, n.resources.map(([name, amount]) => `${name} ${amount}`).join(", "), Object.entries(n.labels).map(([name, value]) => `${name}=${value}`).join(" ") || "–", n.address.replace("tcp://", ""),
        n.running, n.wait, n.local, n.shared, n.fetched, n.stolen, n.pushed, n.run || "–"]));
    };
  });

  section("runs", "Runs", ["runs", "cluster"], (room) => {
    const none = text("No runs at the moment.", true);
    const table = P.table([{ label: "workflow", text: true }, { label: "progress", show: (v) => make("span", {}, P.meter(v), P.percent(v)) }, { label: "state", text: true }, { label: "finished", show: P.count }, { label: "tasks", show: P.count }, { label: "ready or running", show: P.count },
      { label: "tasks per second", show: (v) => v === null ? "–" : P.number(v) }, { label: "remaining", show: P.estimate }, { label: "nodes", show: P.count }, { label: "run", text: true }], [], { label: "runs" });
    room.append(none, table);
    return (mine) => {
      const found = parts.runs || [];
      if (!show(mine, Boolean(parts.cluster))) return;
      none.classList.toggle("hidden", found.length > 0);
      table.classList.toggle("hidden", !found.length);
      table.tell(found.map((r) => [r.name, r.tasks ? r.over / r.tasks : 1, r.state, r.over, r.tasks, r.ready, r.rate, r.left, r.nodes, r.run]));
    };
  });

  section("groups", "Groups", ["groups"], (room) => {
    const table = P.table([{ label: "group", text: true }, { label: "started by", text: true }, { label: "nodes", show: P.count }, { label: "cores", show: P.number }, { label: "running", show: P.count }, { label: "missing", show: P.count }, { label: "factory", text: true }], [], { label: "groups" });
    const missing = P.table([{ label: "node", text: true }, { label: "group", text: true }, { label: "state", text: true }, { label: "reason", text: true, long: true }], [], { label: "missing nodes" });
    const wanting = make("div", {}, make("h3", {}, "Missing nodes"), missing);
    room.append(table, wanting);
    return (mine) => {
      const found = parts.groups || [];
      if (!show(mine, found.length > 0)) return;
      table.tell(found.map((g) => [g.name || "(no group)", (g.kind || "–") + (g.closing ? ", is being removed" : ""), g.nodes, g.cores, g.running, g.missing.length, g.factory || "–"]));
      const rows = found.flatMap((g) => g.missing.map((m) => [m.which, g.name, m.phase, m.reason]));
      wanting.classList.toggle("hidden", !rows.length);
      missing.tell(rows);
    };
  });

  section("store", "Store", ["store"], (room) => {
    const told = text(""), table = P.table([{ label: "what", text: true }, { label: "value", text: true }], [], { label: "store", narrow: true });
    room.append(told, table);
    return (mine) => {
      const s = parts.store;
      if (!show(mine, Boolean(s && (s.where || s.problem)))) return;
      told.textContent = s.problem || { head: "The head process of the cluster stores its state in journal files.", redis: "A Redis server stores the state of the cluster." }[s.kind] || "The agents know where the state of the cluster is stored.";
      told.className = s.problem ? "trouble" : "soft";
      table.tell([["at", s.where], ...s.figures]);
    };
  });

  Frame.start({
    head,
    clock: "cluster",
    status: () => parts.cluster && parts.cluster.live ? "Live" : parts.cluster ? parts.cluster.problem : "",
    over: "The web server has stopped. Use 'shoal web --cluster' to show the cluster again.",
    footer: "All data comes from the agents of the cluster and from the services that start them.",
  });
})();
