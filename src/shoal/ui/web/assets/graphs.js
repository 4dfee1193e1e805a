/* Layered graphs: categories, single tasks, or the places and transitions of a net. While the boxes stay the same, only
   their figures are updated, so that live updates do not disturb reading and pointing. */
"use strict";
const Graphs = (() => {
  const P = Plots;
  const LARGE = { least: 124, most: 240, high: 46, gap: 22, rows: 14, between: 40, pad: 10, mark: 0, font: "600 12.5px" };
  const SMALL = { least: 40, most: 200, high: 26, gap: 10, rows: 10, between: 36, pad: 7, mark: 12, font: "600 11.5px" };
  const LANE = 9, EDGE = 4;  // pixels: between lines that pass a row of boxes, and margin of the drawing
  const MARKS = { done: "✓", failed: "✗", running: "▸" };

  /* The nodes by distance from the first ones. Back edges are ignored, since with a cycle there is no first layer. */
  function layers(count, edges) {
    const into = Array.from({ length: count }, () => []), out = Array.from({ length: count }, () => []);
    for (const [from, to] of edges) if (from !== to) { into[to].push(from); out[from].push(to); }
    const depth = new Array(count).fill(0), state = new Array(count).fill(0);
    for (let first = 0; first < count; first++) {
      const stack = state[first] ? [] : [[first, 0]];
      if (stack.length) state[first] = 1;
      while (stack.length) {
        const top = stack[stack.length - 1], [at, next] = top;
        if (next < into[at].length) {
          top[1]++;
          const from = into[at][next];
          if (!state[from]) { state[from] = 1; stack.push([from, 0]); }
        } else {
          for (const from of into[at]) if (state[from] === 2) depth[at] = Math.max(depth[at], depth[from] + 1);
          state[at] = 2;
          stack.pop();
        }
      }
    }
    const found = [];
    depth.forEach((d, at) => { (found[d] = found[d] || []).push(at); });
    const rows = found.filter(Boolean), near = into.map((list, at) => [list, out[at]]);
    settle(rows, (at, k) => near[at][k]);
    return rows;
  }
  /* Orders the items of each row by the positions of their neighbours, which reduces crossings. */
  function settle(rows, near) {
    const place = new Map(), number = (row) => row.forEach((at, i) => place.set(at, (i + 0.5) / row.length));
    rows.forEach(number);
    const sort = (row, k) => {
      const middle = new Map(row.map((at) => [at, near(at, k).length ? near(at, k).reduce((sum, other) => sum + place.get(other), 0) / near(at, k).length : place.get(at)]));
      row.sort((a, b) => middle.get(a) - middle.get(b) || place.get(a) - place.get(b));
      number(row);
    };
    for (let sweep = 0; sweep < 4; sweep++) {
      for (const row of rows.slice(1)) sort(row, 0);
      if (sweep < 3) for (const row of rows.slice(0, -1).reverse()) sort(row, 1);
    }
  }

  /* Splits layers that are too wide into several rows. An edge passes rows on lanes between their boxes; edges to or from
     the same box share a lane. Returns rows of items {at, wide, up, down} (`at` of a lane is -1), and for each edge the
     items on its way from top to bottom, and whether it goes up. */
  function arranged(wides, edges, room, gap) {
    const first = layers(wides.length, edges), links = edges.filter(([from, to]) => from !== to);
    const degree = (k) => { const found = new Array(wides.length).fill(0); for (const edge of links) found[edge[k]]++; return found; };
    const out = degree(0), into = degree(1);
    const pack = (usable) => first.flatMap((layer) => {
      const total = layer.reduce((sum, at) => sum + wides[at] + gap, -gap), many = Math.max(1, Math.ceil(total / usable)), packed = [[]];
      let filled = 0;
      const order = many > 1 ? [...layer.filter((at) => !out[at]), ...layer.filter((at) => out[at])] : layer;  // nodes with successors are nearest to them
      for (const at of order) {
        const row = packed[packed.length - 1];
        if (row.length && (filled + wides[at] > usable || (many > 1 && filled >= total / many))) { packed.push([at]); filled = wides[at] + gap; }
        else { row.push(at); filled += wides[at] + gap; }
      }
      return packed;
    });
    const route = (packed) => {
      const rowOf = [], items = wides.map((wide, at) => ({ at, wide, up: [], down: [] })), rows = packed.map((row, r) => row.map((at) => { rowOf[at] = r; return items[at]; })), lanes = new Map();
      const lane = (name, r) => {
        if (!lanes.has(name + r)) { const made = { at: -1, wide: 0, up: [], down: [] }; lanes.set(name + r, made); rows[r].push(made); }
        return lanes.get(name + r);
      };
      const ways = links.map(([from, to, note]) => {
        const back = rowOf[from] > rowOf[to], [high, low] = back ? [to, from] : [from, to];
        const name = (back ? "back" : "") + (into[to] >= out[from] ? `to ${to} ` : `from ${from} `), through = [items[high]];
        for (let r = rowOf[high] + 1; r < rowOf[low]; r++) through.push(lane(name, r));
        through.push(items[low]);
        through.forEach((item, i) => { if (i && !item.up.includes(through[i - 1])) { item.up.push(through[i - 1]); through[i - 1].down.push(item); } });
        return { from, to, note, back, through };
      });
      return { rows, ways };
    };
    let found = route(pack(room));
    const most = Math.max(...found.rows.map((row) => row.filter((item) => item.at < 0).length));
    if (most) found = route(pack(Math.max(room * 0.55, room - (most + 1) * LANE)));
    settle(found.rows, (item, k) => k ? item.down : item.up);
    return found;
  }

  /* Positions of items in their rows: near their neighbours, in their order, with minimum distances. */
  function spread(rows, room, gap) {
    for (const row of rows) {
      const lanes = row.filter((item) => item.at < 0).length, boxes = row.reduce((sum, item) => sum + item.wide, 0) + gap * Math.max(0, row.length - lanes - 1);
      const lane = Math.max(1, Math.min(LANE, (room - boxes) / Math.max(1, lanes)));
      let at = 0;
      row.forEach((item, i) => {
        const before = row[i - 1];
        if (before) at += (before.wide + item.wide) / 2 + (before.at < 0 || item.at < 0 ? lane : gap);
        item.shift = at;
      });
      row.slack = Math.max(0, room - at - (row[0].wide + row[row.length - 1].wide) / 2);
      row.forEach((item) => { item.x = EDGE + row[0].wide / 2 + row.slack / 2 + item.shift; });
    }
    const place = (row, near) => {  // least-squares solution that keeps order and distances
      const blocks = [];
      for (const item of row) {
        const others = near(item), wanted = (others.length ? others.reduce((sum, other) => sum + other.x, 0) / others.length : item.x) - item.shift;
        let block = { sum: wanted, size: 1, items: [item] };
        while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].size > block.sum / block.size) {
          const last = blocks.pop();
          block = { sum: last.sum + block.sum, size: last.size + block.size, items: [...last.items, ...block.items] };
        }
        blocks.push(block);
      }
      const least = EDGE + row[0].wide / 2;
      for (const block of blocks) for (const item of block.items) item.x = Math.max(least, Math.min(least + row.slack, block.sum / block.size)) + item.shift;
    };
    for (let sweep = 0; sweep < 6; sweep++) {
      for (const row of rows) place(row, (item) => sweep % 2 ? [...item.up, ...item.down] : item.up);
      for (const row of [...rows].reverse()) place(row, (item) => sweep % 2 ? [...item.up, ...item.down] : item.down);
    }
    const all = rows.flat(), least = Math.min(...all.map((item) => item.x - item.wide / 2)), most = Math.max(...all.map((item) => item.x + item.wide / 2));
    for (const item of all) item.x += EDGE + room / 2 - (least + most) / 2;
  }
  /* Connected components in order of their first nodes; nodes without edges form the last one. */
  function pieces(count, edges) {
    const whole = Array.from({ length: count }, (_, at) => at), touched = new Set(), found = new Map(), alone = [];
    const root = (at) => { while (whole[at] !== at) { whole[at] = whole[whole[at]]; at = whole[at]; } return at; };
    for (const [from, to] of edges) if (from !== to) { touched.add(from).add(to); const [a, b] = [root(from), root(to)]; whole[Math.max(a, b)] = Math.min(a, b); }
    for (let at = 0; at < count; at++) {
      if (!touched.has(at)) alone.push(at);
      else if (found.has(root(at))) found.get(root(at)).push(at);
      else found.set(root(at), [at]);
    }
    return [...found.values(), ...(alone.length ? [alone] : [])];
  }
  /* Lays out each component separately and places them side by side in as many lines as necessary: `rows` and `ways` as
     from `arranged`, with x and y, and the total height. */
  function laid(wides, edges, usable, size) {
    const found = pieces(wides.length, edges), many = found.length > 1, apart = 2 * size.gap;
    const parts = found.map((nodes) => {
      const mine = new Map(nodes.map((at, i) => [at, i])), links = edges.filter(([from]) => mine.has(from)).map(([from, to, note]) => [mine.get(from), mine.get(to), note]);
      const { rows, ways } = arranged(nodes.map((at) => wides[at]), links, usable, size.gap);
      const needs = (row) => { const lanes = row.filter((item) => item.at < 0).length; return row.reduce((sum, item) => sum + item.wide, 0) + size.gap * (row.length - lanes - 1) + LANE * (lanes && lanes + 1); };
      const wide = many ? Math.min(usable, Math.max(...rows.map(needs))) : usable;
      spread(rows, wide, size.gap);
      let high = 0;
      for (const row of rows) {
        for (const item of row) { item.y = high; if (item.at >= 0) item.at = nodes[item.at]; }
        high += size.high + (row.some((item) => item.down.length) ? size.between : size.rows);
      }
      return { rows, wide, high, ways: ways.map((way) => ({ ...way, from: nodes[way.from], to: nodes[way.to] })) };
    });
    const lines = [];
    for (const part of parts) {
      let last = lines[lines.length - 1];
      if (!last || last.wide + apart + part.wide > usable) lines.push(last = { wide: -apart, high: 0, parts: [] });
      part.x = last.wide + apart;
      last.wide = part.x + part.wide;
      last.high = Math.max(last.high, part.high);
      last.parts.push(part);
    }
    const aside = (usable - Math.max(0, ...lines.map((line) => line.wide))) / 2, rows = [];
    let y = 4;
    for (const { parts: beside, high } of lines) {
      for (const part of beside) for (const item of part.rows.flat()) { item.x += part.x + aside; item.y += y; }
      const most = Math.max(...beside.map((part) => part.rows.length));
      for (let r = 0; r < most; r++) rows.push(beside.flatMap((part) => part.rows[r] || []));
      y += high + (many ? size.rows : 0);
    }
    return { rows, ways: parts.flatMap((part) => part.ways), high: y - (many ? size.rows : 0) };
  }
  /* From the bottom centre of one box to the top centre of another; upward lines are routed at the side. */
  function line({ through, back }, high) {
    const aside = (item) => item.x + (back && item.at >= 0 ? Math.min(16, item.wide / 4) : 0), [first, last] = [through[0], through[through.length - 1]];
    let d = `M${aside(first).toFixed(1)} ${first.y + high}`, [x, y] = [aside(first), first.y + high];
    for (const item of through.slice(1)) {
      const bend = (item.y - y) / 2;
      d += `C${x.toFixed(1)} ${y + bend} ${aside(item).toFixed(1)} ${item.y - bend} ${aside(item).toFixed(1)} ${item.y}`;
      if (item.at < 0) d += `V${item.y + high}`;
      [x, y] = [aside(item), item.y + high];
    }
    return [d, back ? `M${aside(first)} ${first.y + high}l4 6h-8Z` : `M${last.x} ${last.y}l4 -6h-8Z`];
  }

  /* One box; `node.tell(now)` updates its figures. */
  function box(node, [x, y, wide], size) {
    const group = P.shape("g", { class: "node-box" + (node.act ? " tip-able" : ""), tabindex: "-1", role: node.act ? "button" : "img" });
    const pad = node.round ? 16 : size.pad, told = P.shape("title", {}), ground = P.shape("rect", { class: "box", x, y, width: wide, height: size.high, rx: node.round ? size.high / 2 : 7 });
    const name = P.shape("text", { class: "box-name", x: x + pad, y: y + 17 }), note = P.shape("text", { x: x + pad, y: y + 32 }), shares = P.shape("g");
    group.append(told, ground, name, note, shares);
    const tell = (now) => {
      told.textContent = `${now.name}: ${now.note}`;
      group.setAttribute("aria-label", told.textContent);
      if (now.state) ground.setAttribute("class", "box state-" + now.state.replace(" ", "-"));
      name.textContent = (size.mark && MARKS[now.state] || "") + P.cut(now.name, wide - 2 * pad - size.mark, size.font);
      if (!size.mark) note.textContent = P.cut(now.note, wide - 2 * pad, "12px");
      let from = x + pad;
      shares.replaceChildren(...(now.parts || []).map(([part, colour]) => {
        const share = Math.max(0, (wide - 2 * pad) * part);
        from += share;
        return P.shape("rect", { x: from - share, y: y + size.high - 9, width: share, height: 5, fill: colour });
      }));
    };
    tell(node);
    if (node.act) group.addEventListener("click", () => node.act());
    return { group, tell };
  }

  /* Tab reaches one of the boxes, arrow keys the others; Enter works like a click. */
  function walkable(boxes, rows, nodes) {
    const where = new Map();
    rows.forEach((row, r) => row.forEach((item, k) => where.set(item.at, [r, k])));
    const go = ({ at }) => { for (const { group } of boxes) group.setAttribute("tabindex", "-1"); boxes[at].group.setAttribute("tabindex", "0"); boxes[at].group.focus(); };
    if (boxes.length) boxes[rows[0][0].at].group.setAttribute("tabindex", "0");
    boxes.forEach(({ group }, at) => group.addEventListener("keydown", (event) => {
      const [r, k] = where.get(at), row = rows[r], away = (item) => Math.abs(item.x - row[k].x);
      const other = (next) => next && next.reduce((best, item) => away(item) < away(best) ? item : best);
      const to = { ArrowLeft: row[k - 1], ArrowRight: row[k + 1], ArrowUp: other(rows[r - 1]), ArrowDown: other(rows[r + 1]) }[event.key];
      if ((event.key === "Enter" || event.key === " ") && nodes[at].act) { event.preventDefault(); nodes[at].act(); }
      if (event.key.startsWith("Arrow")) { event.preventDefault(); if (to) go(to); }
    }));
  }

  /* {label, nodes: [{name, note, longest, round, state, parts: [[share, colour]], act}], edges: [[from, to, note]], small};
     `longest` is the longest text that a note may have during the run, so that boxes need not move. */
  function of(o) {
    let boxes = [];
    const draw = (room, wide, label) => {
      const size = o.small ? SMALL : LARGE, usable = wide - 2 * EDGE, place = [];
      const wides = o.nodes.map((node) => Math.min(usable, size.most, Math.max(size.least, Math.ceil(Math.max(P.width(node.name, size.font) + size.mark, size.mark ? 0 : Math.max(P.width(node.note, "12px"), P.width(node.longest || "", "12px")))) + 2 * (node.round ? 16 : size.pad) + 2)));
      const { rows, ways, high: below } = laid(wides, o.edges, usable, size);
      for (const item of rows.flat()) if (item.at >= 0) place[item.at] = [item.x - item.wide / 2, item.y, item.wide];
      const high = Math.max(60, below - size.rows + 4), svg = P.shape("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, role: "group", "aria-label": label, class: (o.small ? "small" : "") + (o.edges.length > 150 ? " crowded" : "") });
      const touching = o.nodes.map(() => []);
      for (const way of ways) {
        const [d, tip] = line(way, size.high), path = P.shape("path", { class: "edge", d });
        if (way.note) path.append(P.shape("title", {}, way.note));
        svg.append(path, P.shape("path", { class: "arrow", d: tip }));
        touching[way.from].push(path); touching[way.to].push(path);
      }
      boxes = o.nodes.map((node, at) => {
        const made = box(node, place[at], size), light = (on) => () => { for (const path of touching[at]) path.classList.toggle("lit", on); };
        for (const [event, on] of [["pointerenter", true], ["focus", true], ["pointerleave", false], ["blur", false]]) made.group.addEventListener(event, light(on));
        svg.append(made.group);
        return made;
      });
      walkable(boxes, rows.map((row) => row.filter((item) => item.at >= 0)), o.nodes);
      room.append(svg);
    };
    const figure = P.drawing(null, () => o.label, draw, {});
    figure.tell = (more) => {
      const same = Boolean(more.small) === Boolean(o.small) && more.edges.length === o.edges.length && more.nodes.length === o.nodes.length && more.nodes.every((node, at) => node.name === o.nodes[at].name);
      Object.assign(o, more);
      if (same && boxes.length) o.nodes.forEach((node, at) => boxes[at].tell(node));
      else figure.redraw();
    };
    return figure;
  }
  return { of };
})();
