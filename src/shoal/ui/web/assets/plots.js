/* Drawings for reports and live pages: areas, lines, bars, tables and Gantt charts. Data from a run is inserted as text,
   never as markup. Independent of the source of the data. */
"use strict";
const Plots = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = ["#3b76af", "#ef8536", "#519e3e", "#8d69b8", "#45a5a8", "#d6b019", "#c5689b", "#8f6353", "#6d8fd1",
    "#9aab3c", "#b3867a", "#8a929c"];
  const RAW = COLOURS.map((hex) => parseInt(hex.slice(5, 7) + hex.slice(3, 5) + hex.slice(1, 3), 16));
  const LEFT = 62, RIGHT = 12, TOP = 8, BOTTOM = 26;

  // ---- text ---------------------------------------------------------------------------------------------------------

  const { count, many, number, range, compact, percent, shareOf, bytes, seconds, estimate } = Quantities;

  /* Replaces control characters, direction marks and invisible characters, so that no name can disturb the text around it.
     All text of a run passes through these two functions. */
  const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const known = new Map();
  function printable(words) {
    const shown = words.replace(/\r\n/g, "\n").replace(UNSEEN, "\ufffd");
    if (shown !== words && words.length < 1000 && known.size < 1000) known.set(shown, words);
    return shown;
  }
  function read(text) {
    return JSON.parse(text, (_, value) => typeof value === "string" ? printable(value)
      : value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).some((key) => key.search(UNSEEN) >= 0)
        ? Object.fromEntries(Object.entries(value).map(([key, one]) => [printable(key), one])) : value);
  }
  /* The original of a displayed string, for requests to the server. */
  const original = (shown) => known.has(shown) ? known.get(shown) : shown;
  const pen = document.createElement("canvas").getContext("2d");
  const FONT = 'system-ui, "Noto Sans", "Liberation Sans", sans-serif';
  function width(words, font) { pen.font = `${font} ${FONT}`; return pen.measureText(words).width; }
  /* Truncates a name in the middle, because numbers at its end distinguish names. */
  function cut(words, room, font) {
    const all = [...words];
    let found = words;
    for (let most = Math.min(all.length - 1, 200); most > 1 && width(found, font) > room; most--) found = all.slice(0, Math.ceil(most / 2)).join("") + "…" + all.slice(all.length - Math.floor(most / 2)).join("");
    return found;
  }

  // ---- elements -----------------------------------------------------------------------------------------------------

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }
  function shape(tag, attributes = {}, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const colour = (place) => COLOURS[place % COLOURS.length];
  function swatch(paint) {
    const made = element("span", { class: "swatch", "aria-hidden": "true" });
    made.style.background = paint;
    return made;
  }
  function legend(entries) {
    return element("ul", { class: "legend" }, ...entries.map(([name, paint]) => element("li", {}, swatch(paint), name)));
  }

  // ---- scales -------------------------------------------------------------------------------------------------------

  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  function timeTicks(begin, end, most) {
    const span = Math.max(end - begin, 1e-9), least = span / Math.max(1, most);
    let step = STEPS.find((s) => s >= least);
    if (least > 86400) step = Math.ceil(least / 86400) * 86400;
    if (least < 0.5) step = nice(least);
    const found = [];
    for (let t = Math.ceil(begin / step - 1e-9) * step; t <= end + 1e-9 * span; t += step) found.push(+t.toPrecision(12));
    return [found, step];
  }
  function nice(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * ([1, 2, 5, 10].find((m) => m * power >= least * 0.999) || 10);
  }
  function niceBytes(least) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, least)) / Math.log(1024)));
    return unit * ([1, 2, 5, 10, 20, 50, 128, 256, 512].find((step) => step >= least / unit) || 1024);  // 1,000 MiB is not a round number of GiB
  }
  /* All labels of an axis in one unit, chosen by `end`. */
  function clock(t, step, end) {
    if (t === 0) return "0";
    if (step < 0.001) return +(t * 1000).toFixed(3) + " ms";
    if (step < 1) return +t.toFixed(3) + " s";
    if (step < 60 && end < 120) return Math.round(t) + " s";
    const two = (n) => String(n).padStart(2, "0");
    const h = Math.floor(t / 3600), m = Math.floor(t % 3600 / 60), s = Math.round(t % 60);
    if (step >= 86400) return Math.round(t / 86400) + " d";
    if (end >= 3600) return h + ":" + two(m) + (step < 60 ? ":" + two(s) : "") + " h";
    return step < 60 ? m + ":" + two(s) + " min" : m + " min";
  }

  // ---- one drawing: caption, area, tooltip, and its figures as a table ----------------------------------------------

  let shownTip = null;
  function hideTip() { if (shownTip) { shownTip.remove(); shownTip = null; } }
  function showTip(room, x, y, content) {
    hideTip();
    shownTip = element("div", { class: "tip" }, content);
    room.append(shownTip);
    const wide = shownTip.offsetWidth, high = shownTip.offsetHeight;
    shownTip.style.left = Math.max(0, Math.min(x + 14, room.clientWidth - wide)) + "px";
    shownTip.style.top = (y + 18 + high > room.clientHeight ? Math.max(-high, y - high - 10) : y + 18) + "px";
  }
  function rowsOf(head, pairs) {
    return element("div", {}, element("b", {}, head), element("table", {}, ...pairs.map(([name, value, paint]) =>
      element("tr", {}, element("td", {}, paint ? swatch(paint) : "", name), element("td", {}, value)))));
  }
  /* `draw` and `extra` read the figures at each call, so `update` only signals that they have changed. */
  function drawing(caption, label, draw, extra = {}) {
    const room = element("div", { class: "plot" });
    const heard = element("div", { class: "heard", "aria-live": "polite" });
    const figure = element("figure", {}, caption ? element("figcaption", {}, caption) : null, room, heard);
    let entries = extra.legend ? legend(extra.legend()) : null;
    if (entries) figure.append(entries);
    const details = element("details", {}, element("summary", {}, "Show as a table"));
    const fill = () => { if (details.open) details.replaceChildren(details.firstChild, extra.table()); };
    details.addEventListener("toggle", () => { if (details.children.length === 1) fill(); });
    if (extra.table) figure.append(details);
    let wide = 0;
    const again = () => {
      if (room.clientWidth && room.clientWidth !== wide) { wide = room.clientWidth; room.replaceChildren(); draw(room, wide, typeof label === "function" ? label() : label, heard); }
    };
    new ResizeObserver(again).observe(room);
    requestAnimationFrame(again);
    figure.redraw = () => { wide = 0; again(); };
    figure.update = () => {
      if (room.matches(":hover") || room.contains(document.activeElement)) return;  // in use: do not rebuild it now
      figure.redraw();
      if (entries) {
        const now = legend(extra.legend());
        if (now.textContent !== entries.textContent) { entries.replaceWith(now); entries = now; }
      }
      if (extra.table && !details.contains(document.activeElement)) fill();
    };
    return figure;
  }
  function frame(room, wide, high, label, begin, end, top, unit) {
    const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, role: "img", "aria-label": label, tabindex: "0" });
    const x = (t) => LEFT + (wide - LEFT - RIGHT) * (t - begin) / Math.max(end - begin, 1e-9);
    const y = (v) => high - BOTTOM - (high - TOP - BOTTOM) * v / top;
    const step = unit === bytes ? niceBytes(top / 4) : nice(top / (high > 180 ? 4 : 3));
    for (let v = 0; v <= top * 1.0001; v += step) {
      svg.append(shape("line", { class: "axis", x1: LEFT, x2: wide - RIGHT, y1: y(v), y2: y(v) }));
      svg.append(shape("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, unit === number ? compact(v) : unit(v)));
    }
    const [ticks, tick] = timeTicks(begin, end, (wide - LEFT) / 90);
    for (const t of ticks) {
      const anchor = x(t) > wide - 40 ? "end" : x(t) < LEFT + 10 ? "start" : "middle";
      svg.append(shape("line", { class: "axis", x1: x(t), x2: x(t), y1: high - BOTTOM, y2: high - BOTTOM + 4 }));
      svg.append(shape("text", { x: x(t), y: high - 7, "text-anchor": anchor }, clock(t, tick, end)));
    }
    room.append(svg);
    return { svg, x, y };
  }
  /* Shows the values at the position of the mouse or of the arrow-key cursor. */
  function pointable(room, svg, heard, buckets, xOf, tell) {
    const line = shape("line", { class: "cursor", y1: TOP, y2: svg.viewBox.baseVal.height - BOTTOM, visibility: "hidden" });
    svg.append(line);
    let at = -1;
    const show = (bucket, y) => {
      at = Math.max(0, Math.min(buckets - 1, bucket));
      const x = xOf(at);
      line.setAttribute("x1", x); line.setAttribute("x2", x); line.setAttribute("visibility", "visible");
      showTip(room, x, y, tell(at));
    };
    const hide = () => { hideTip(); line.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      if (share < 0 || share > 1) { hide(); return; }
      show(Math.floor(share * buckets), event.clientY - box.top);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      if (by === undefined) { if (event.key === "Escape") hide(); return; }
      event.preventDefault();
      show(at < 0 ? 0 : at + by, 20);
      heard.textContent = shownTip ? shownTip.innerText : "";
    });
  }
  const highest = (rows) => rows.reduce((most, row) => row.reduce((m, v) => v > m ? v : m, most), 0);

  // ---- stacked areas ------------------------------------------------------------------------------------------------

  function stacked(o) {
    const draw = (room, wide, label, heard) => {
      const n = o.buckets, width = (o.end - o.begin) / n, sums = new Array(n).fill(0);
      for (const s of o.series) s.values.forEach((v, i) => { sums[i] += v; });
      const top = (Math.max(highest([sums]), o.limit ? highest([o.limit]) : 0) || 1) * 1.04, high = o.high || 240;
      const { svg, x, y } = frame(room, wide, high, label, o.begin, o.end, top, o.unit);
      if (o.idle && o.limit) svg.append(shape("path", { d: area(new Array(n).fill(0), o.limit), fill: o.idleColour || "var(--idle)" }));
      let below = new Array(n).fill(0);
      for (const s of o.series) {
        const above = below.map((v, i) => v + s.values[i]);
        svg.append(shape("path", { d: area(below, above), fill: s.colour }));
        below = above;
      }
      if (o.limit) {
        let d = `M${x(o.begin)} ${y(o.limit[0])}`;
        o.limit.forEach((v, i) => { d += `V${y(v).toFixed(1)}H${x(o.begin + (i + 1) * width).toFixed(1)}`; });
        svg.append(shape("path", { class: "limit", d }));
      }
      function area(low, high) {
        let there = `M${x(o.begin).toFixed(1)} ${y(high[0]).toFixed(1)}`, back = "";
        for (let i = 0; i < n; i++) there += `V${y(high[i]).toFixed(1)}H${x(o.begin + (i + 1) * width).toFixed(1)}`;
        for (let i = n - 1; i >= 0; i--) back += `V${y(low[i]).toFixed(1)}H${x(o.begin + i * width).toFixed(1)}`;
        return there + back + "Z";
      }
      pointable(room, svg, heard, n, (i) => x(o.begin + (i + 0.5) * width), (i) => rowsOf(
        "after " + seconds(o.begin + (i + 0.5) * width),
        [...o.series].reverse().filter((s) => s.values[i] > 0).slice(0, 13).map((s) => [s.name, o.unit(s.values[i]), s.colour])
          .concat(o.limit ? [[o.limitName, o.unit(o.limit[i])]] : [])));
    };
    const table = () => overTime(o, o.series.map((s) => [s.name, s.values]).concat(o.limit ? [[o.limitName, o.limit]] : []));
    const entries = () => o.series.map((s) => [s.name, s.colour]).concat(o.idle ? [["idle", o.idleColour || "var(--idle)"]] : []);
    return updatable(o, drawing(o.caption, () => o.label, draw, { legend: entries, table }));
  }
  /* Cores of attempts on other nodes, whose categories are known only when they have ended. */
  const underway = (values) => values.some((v) => v > 0) ? [{ name: "running on other nodes", values, colour: "var(--underway)" }] : [];
  /* `figure.tell(more)` redraws it with new figures. */
  function updatable(o, figure) {
    figure.tell = (more) => { Object.assign(o, more); figure.update(); };
    return figure;
  }
  function overTime(o, columns) {
    const step = Math.max(1, Math.ceil(o.buckets / 40)), width = (o.end - o.begin) / o.buckets, rows = [];
    for (let i = 0; i < o.buckets; i += step) {
      const upTo = Math.min(o.buckets, i + step);
      rows.push([o.begin + i * width, ...columns.map(([, v]) => v.slice(i, upTo).reduce((a, b) => a + b, 0) / (upTo - i))]);
    }
    return table([{ label: "from", show: seconds }, ...columns.map(([label]) => ({ label, show: o.unit }))], rows);
  }

  // ---- lines: [{name, colour, points: [[t, v], ...]}], each value holds until the next one --------------------------

  function lines(o) {
    const draw = (room, wide, label, heard) => {
      const top = (o.top || highest(o.series.map((s) => s.points.map((p) => p[1] || 0))) || 1) * 1.05;
      const { svg, x, y } = frame(room, wide, o.high || 170, label, o.begin, o.end, top, o.unit);
      for (const s of o.series) {
        let d = "";
        s.points.forEach(([t, v], i) => {
          if (v === null) return;
          const after = i + 1 < s.points.length ? s.points[i + 1][0] : o.end;
          d += d && s.points[i - 1] && s.points[i - 1][1] !== null ? `V${y(v).toFixed(1)}` : `M${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
          d += `H${x(after).toFixed(1)}`;
        });
        svg.append(shape("path", { d, fill: "none", stroke: s.colour, "stroke-width": "1.8" }));
      }
      const cells = 300, width = (o.end - o.begin) / cells;
      const value = (s, t) => { let found = null; for (const p of s.points) { if (p[0] > t) break; found = p[1]; } return found; };
      pointable(room, svg, heard, cells, (i) => x(o.begin + (i + 0.5) * width), (i) => rowsOf("after " + seconds(o.begin + (i + 0.5) * width),
        o.series.map((s) => { const v = value(s, o.begin + (i + 0.5) * width); return [s.name, v === null ? "–" : o.unit(v), s.colour]; })));
    };
    const all = () => table([{ label: "series", text: true }, { label: "time", show: seconds }, { label: "value", show: (v) => v === null ? "–" : o.unit(v) }],
      o.series.flatMap((s) => s.points.filter((_, i) => i % Math.ceil(s.points.length / 40) === 0).map((p) => [s.name, p[0], p[1]])));
    return updatable(o, drawing(o.caption, () => o.label, draw, { legend: () => o.series.map((s) => [s.name, s.colour]), table: all }));
  }

  // ---- tables and bars ----------------------------------------------------------------------------------------------

  const kindOf = (column) => column.text ? column.long ? "text long" : "text" : "";

  /* columns: [{label, show, text, long, help}], `long` for sentences; a click on a column head sorts. */
  function table(columns, rows, options = {}) {
    let sorted = -1, turned = false;
    const body = element("tbody");
    /* Unchanged rows keep their elements, with everything the user has opened or selected there. */
    const fill = () => {
      rows.forEach((row, r) => {
        const line = body.rows[r] || body.insertRow();
        row.forEach((value, i) => {
          const shown = columns[i].show ? columns[i].show(value, row) : value, words = shown === null || shown === undefined ? "–" : shown;
          const cell = line.cells[i] || line.appendChild(element("td", { class: kindOf(columns[i]) })), told = JSON.stringify(value);
          if (cell.told === told && cell.textContent === (words.textContent === undefined ? String(words) : words.textContent)) return;
          cell.told = told;
          cell.replaceChildren(words);
        });
      });
      while (body.rows.length > rows.length) body.deleteRow(-1);
    };
    const heads = columns.map((column, i) => element("th", { scope: "col", class: kindOf(column), title: column.help || false, "aria-sort": "none" },
      element("button", { onclick: () => sort(i) }, column.label)));
    const sort = (i) => {
      turned = sorted === i ? !turned : false;
      sorted = i;
      arrange();
      heads.forEach((head, k) => head.setAttribute("aria-sort", k !== i ? "none" : (typeof (rows[0] || [])[i] === "number") === turned ? "ascending" : "descending"));
      fill();
    };
    const arrange = () => { rows = arranged(rows); };
    const arranged = (given) => {
      const i = sorted;
      return i < 0 ? given : [...given].sort((a, b) => {
        const order = typeof a[i] === "number" || typeof b[i] === "number" ? (b[i] || 0) - (a[i] || 0) : String(a[i]).localeCompare(String(b[i]));
        return turned ? -order : order;
      });
    };
    /* Whether the focus or pointer is in a row that would now change its content. */
    const takes = (more) => {
      const line = body.contains(document.activeElement) && document.activeElement.closest("tr");
      return line && JSON.stringify((more[line.sectionRowIndex] || [])[0]) !== line.cells[0].told;
    };
    fill();
    const room = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label || "table" },
      element("table", { class: options.narrow ? "data narrow" : "data" }, element("thead", {}, element("tr", {}, ...heads)), body));
    room.tell = (more) => {
      more = arranged(more);
      if (takes(more)) return;
      rows = more;
      fill();
    };
    return room;
  }
  /* The note below an incomplete table of nodes. */
  const cutOff = (shown, all) => shown < all ? `The first ${count(shown)} of ${many(all, "node")}.` : "";
  /* Examples of a cause of failure as [name, sentence]; repeated sentences appear once. */
  function examples(list) {
    const by = new Map();
    for (const [name, words] of list) by.set(words, (by.get(words) || new Set()).add(name));
    return element("details", {}, element("summary", {}, list[0][0] + (new Set(list.map(([name]) => name)).size > 1 ? " …" : "")), ...[...by].map(([words, names]) =>
      element("p", {}, ...[...names].flatMap((name, i) => [i ? ", " : "", element("code", {}, name)]), ": " + words)));
  }
  function meter(share) {
    const fill = element("i");
    fill.style.width = Math.max(0, Math.min(100, 100 * share)) + "%";
    return element("span", { class: "meter", "aria-hidden": "true" }, fill);
  }
  /* rows: [{name, value, text, colour}] */
  function bars(rows, label) {
    const most = Math.max(...rows.map((row) => row.value), 1e-9);
    return element("div", { class: "rows", role: "list", "aria-label": label }, ...rows.map((row) => {
      const fill = element("i");
      fill.style.width = 100 * row.value / most + "%";
      if (row.colour) fill.style.background = row.colour;
      return element("div", { class: "row", role: "listitem" }, element("div", {}, row.name), element("div", { class: "track", "aria-hidden": "true" }, fill), element("div", { class: "value" }, row.text));
    }));
  }
  /* One stacked bar: [{name, value, colour, text}] */
  function whole(parts, label) {
    const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
    const bar = element("div", { class: "bar", role: "img", "aria-label": label + ": " + parts.map((p) => p.name + " " + p.text).join(", ") });
    for (const part of parts) {
      const piece = element("span", { title: `${part.name}: ${part.text}` });
      piece.style.width = 100 * part.value / total + "%";
      piece.style.background = part.colour;
      bar.append(piece);
    }
    return element("div", {}, bar, legend(parts.map((part) => [`${part.name}: ${part.text}`, part.colour])));
  }

  // ---- Gantt chart --------------------------------------------------------------------------------------------------

  class Gantt {
    static enter = "zooms in";
    constructor(data, names, label) {
      this.data = data;
      this.names = names;
      this.first = this.from = data.begin;
      this.last = this.to = Math.max(data.end, data.begin + 1e-6);
      this.take(data);
      this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": label });
      this.heard = element("div", { class: "heard", "aria-live": "polite" });
      this.room = element("div", { class: "plot" }, this.canvas);
      const tool = (text, name, act) => element("button", { "aria-label": name, title: name, onclick: act }, text);
      this.node = element("figure", {}, element("div", { class: "tools" },
        tool("+", "zoom in", () => this.zoom(0.5)), tool("−", "zoom out", () => this.zoom(2)),
        tool("←", "earlier", () => this.move(-0.25)), tool("→", "later", () => this.move(0.25)),
        tool("all", "show the whole run", () => this.reset()),
        element("span", { class: "soft" }, "Drag to pan, Ctrl+wheel to zoom. Keyboard: arrow keys select, Enter " + this.constructor.enter + ", Shift+arrow keys pan, + and − zoom.")), this.room, this.heard,
        this.legend = this.makeLegend());
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.room);
      requestAnimationFrame(() => this.draw());
    }
    makeLegend() {
      const bad = this.data.bad && this.data.bad.length;
      return legend(this.names.map((name, i) => [name, colour(i)]).concat(bad ? [["failed", "var(--bad)"]] : []));
    }
    take(data) {
      const kept = this.picked === undefined || this.cells ? null : [this.data.row[this.picked], this.data.start[this.picked]];
      this.data = data;
      this.widest = Math.max(0, ...data.rows.map((name) => width(name, "12px")));
      this.cells = data.kind === "cells" ? Uint8Array.from(atob(data.cells), (c) => c.charCodeAt(0)) : null;
      this.byRow = this.cells ? null : this.sortIntoRows();
      this.picked = kept && this.byRow && this.byRow[kept[0]] ? this.byRow[kept[0]].find((i) => this.data.start[i] === kept[1]) : undefined;
    }
    sortIntoRows() {
      const rows = this.data.rows.map(() => []), bad = new Set(this.data.bad);
      this.bad = bad;
      this.data.row.forEach((row, i) => rows[row].push(i));
      for (const row of rows) row.sort((a, b) => this.data.start[a] - this.data.start[b]);
      return rows;
    }
    /* Width of the row names, at most a third of the drawing. */
    get left() { return Math.max(40, Math.min(180, this.room.clientWidth * 0.34, this.widest + 10)); }
    listen() {
      const canvas = this.canvas;
      let held = null;
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => { held = [event.offsetX, this.from, this.to]; canvas.setPointerCapture(event.pointerId); });
      canvas.addEventListener("pointerup", () => { held = null; });
      canvas.addEventListener("pointermove", (event) => {
        if (held) {
          const by = (held[0] - event.offsetX) / (canvas.clientWidth - this.left) * (held[2] - held[1]);
          this.show(held[1] + by, held[2] + by);
        } else this.tell(event.offsetX, event.offsetY);
      });
      canvas.addEventListener("pointerleave", hideTip);
      canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event.offsetX)));
      canvas.addEventListener("keydown", (event) => {
        const picks = !event.shiftKey && { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        const other = picks ? () => this.pick(...picks) : { Enter: () => this.choose(), Escape: () => this.drop() }[event.key];
        const act = { ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
          "-": () => this.zoom(2), ArrowUp: () => this.zoom(0.5), ArrowDown: () => this.zoom(2), Home: () => this.reset() }[event.key];
        if (event.ctrlKey || event.altKey || event.metaKey || !(other || act)) return;
        event.preventDefault();
        if (other) other(); else { act(); this.heard.textContent = `${seconds(this.from)} to ${seconds(this.to)}`; }
      });
      canvas.addEventListener("blur", () => this.drop());
    }

    // Keyboard: moves from bar to bar, or over the cells of a raster image.

    pick(down, along) {
      if (this.cells) { this.pickCell(down, along); return; }
      let next;
      if (this.picked === undefined) next = this.byRow.flat().find((i) => this.data.start[i] + this.data.length[i] >= this.from);
      else if (along) { const row = this.byRow[this.data.row[this.picked]]; next = row[row.indexOf(this.picked) + along]; }
      else next = this.nearest(down);
      if (next === undefined) { this.heard.textContent = this.byRow.some((row) => row.length) ? "no more attempts in this direction" : "no task has run yet"; return; }
      this.picked = next;
      const start = this.data.start[next], end = start + this.data.length[next], span = this.to - this.from;
      if (end < this.from || start > this.to || (start < this.from && end - start < span)) this.show(start - span / 4, start + 3 * span / 4);
      this.soon(() => this.tellPicked());
    }
    /* In the next row above or below that has bars, the bar at about the same time. */
    nearest(down) {
      const middle = this.data.start[this.picked] + this.data.length[this.picked] / 2;
      const away = (i) => Math.max(this.data.start[i] - middle, middle - this.data.start[i] - this.data.length[i], 0);
      for (let row = this.data.row[this.picked] + down; this.byRow[row]; row += down)
        if (this.byRow[row].length) return this.byRow[row].reduce((best, i) => away(i) < away(best) ? i : best);
      return undefined;
    }
    tellPicked() {
      const i = this.picked;
      if (i === undefined) return;
      const row = this.data.row[i], middle = Math.max(this.from, Math.min(this.to, this.data.start[i] + this.data.length[i] / 2));
      const x = this.left + (middle - this.from) / (this.to - this.from) * (this.canvas.clientWidth - this.left), pairs = this.barPairs(i);
      showTip(this.room, x, this.top + row * this.pitch, rowsOf(this.data.rows[row], pairs));
      this.heard.textContent = [this.data.rows[row], ...pairs.map(([name, value]) => `${name} ${value}`.trim())].join(", ");
    }
    pickCell(down, along) {
      const rows = this.data.rows.length, step = (this.to - this.from) / 40;
      const now = this.cell && this.cell.t >= this.from && this.cell.t <= this.to ? this.cell : { row: 0, t: this.from + step / 2 - along * step };
      this.cell = { row: Math.max(0, Math.min(rows - 1, this.cell ? now.row + down : 0)), t: Math.max(this.from, Math.min(this.to, now.t + along * step)) };
      this.soon(() => {
        if (!this.cell || !this.cells) return;
        const { row, t } = this.cell, pairs = this.cellPairs(row, t);
        showTip(this.room, this.left + (t - this.from) / (this.to - this.from) * (this.canvas.clientWidth - this.left), this.top + row * this.pitch, rowsOf(`${this.data.rows[row]}, after ${seconds(t)}`, pairs));
        this.heard.textContent = `${this.data.rows[row]}, after ${seconds(t)}: ${pairs.map(([name, value]) => `${name} ${value}`.trim()).join(", ")}`;
      });
    }
    /* Action of Enter: zoom in. */
    choose() {
      if (this.cells) { if (this.cell) this.zoom(0.25, this.cell.t); }
      else if (this.picked !== undefined) this.show(this.data.start[this.picked] - 2 * this.data.length[this.picked], this.data.start[this.picked] + 3 * this.data.length[this.picked]);
      this.heard.textContent = `${seconds(this.from)} to ${seconds(this.to)}`;
    }
    drop() { hideTip(); if (this.picked !== undefined || this.cell) { this.picked = this.cell = undefined; this.soon(); } }
    timeAt(x) { return this.from + (this.to - this.from) * (x - this.left) / (this.canvas.clientWidth - this.left); }
    zoom(by, around = (this.from + this.to) / 2) { this.show(around - (around - this.from) * by, around + (this.to - around) * by); }
    move(by) { const span = (this.to - this.from) * by; this.show(this.from + span, this.to + span); }
    reset() { this.show(this.first, this.last); }
    show(from, to) {
      const all = Math.max(this.last - this.first, 1e-6);
      const span = Math.max(all / 1e5, Math.min(all, to - from));
      this.from = Math.max(this.first, Math.min(from, this.first + all - span));
      this.to = this.from + span;
      hideTip();
      this.soon();
    }
    soon(then) {
      if (then) this.then = then;
      if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.draw(); if (this.then) { this.then(); this.then = null; } }); }
    }
    hit(row, t, slack) { return this.byRow[row].find((i) => this.data.start[i] - slack <= t && t <= this.data.start[i] + this.data.length[i] + slack); }
    tell(x, y) {
      const row = Math.floor((y - this.top) / this.pitch), t = this.timeAt(x);
      if (x < this.left || row < 0 || row >= this.data.rows.length) { hideTip(); return; }
      const hit = this.cells ? null : this.hit(row, t, (this.to - this.from) / this.canvas.clientWidth);
      if (hit === undefined) { hideTip(); return; }
      showTip(this.room, x, y, rowsOf(`${this.data.rows[row]}, after ${seconds(t)}`, this.cells ? this.cellPairs(row, t) : this.barPairs(hit)));
    }
    cellPairs(row, t) {
      const cell = this.cells[row * this.data.pixels + Math.floor((t - this.data.begin) / (this.data.end - this.data.begin) * this.data.pixels)];
      return [cell ? [this.names[(cell >> 4) - 1], percent((cell & 15) / 15) + " busy", colour((cell >> 4) - 1)] : ["idle", ""]];
    }
    barPairs(i) {
      const data = this.data, pairs = [[data.name[i], "", colour(data.category[i])], [this.names[data.category[i]], ""], ["start", seconds(data.start[i])], ["run time", seconds(data.length[i])]];
      if (data.attempt.length && data.attempt[i] > 1) pairs.push(["attempt", data.attempt[i]]);
      if (this.bad.has(i)) pairs.push(["failed", ""]);
      return pairs;
    }
    draw() {
      const wide = this.room.clientWidth, rows = this.data.rows.length, ratio = window.devicePixelRatio || 1;
      if (!wide) return;
      this.top = 4;
      this.pitch = Math.max(7, Math.min(26, Math.floor(420 / Math.max(1, rows))));
      const high = this.top + this.pitch * rows + BOTTOM, canvas = this.canvas;
      if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
        canvas.width = Math.round(wide * ratio);
        canvas.height = Math.round(high * ratio);
        canvas.style.height = high + "px";
      }
      const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      const paint = (name) => style.getPropertyValue(name).trim();
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, wide, high);
      const left = this.left, room = wide - left, gap = this.pitch > 9 ? 2 : this.pitch > 5 ? 1 : 0;
      pen.fillStyle = paint("--wash");
      for (let row = 0; row < rows; row++) pen.fillRect(left, this.top + row * this.pitch, room, this.pitch - gap);
      this.drawLabels(pen, left, paint("--soft"), paint("--line"), wide, high);
      if (this.cells) this.drawCells(pen, left, room, gap); else this.drawBars(pen, left, room, gap, paint("--bad"), paint("--card"));
      this.drawPicked(pen, left, room, gap, paint("--ink"));
    }
    drawPicked(pen, left, room, gap, ink) {
      const i = this.cells ? undefined : this.picked, scale = room / (this.to - this.from), row = i === undefined ? this.cell && this.cell.row : this.data.row[i];
      if (i === undefined && !(this.cells && this.cell)) return;
      const start = i === undefined ? this.cell.t : this.data.start[i], from = Math.max(left, left + (start - this.from) * scale - 1);
      const to = Math.min(left + room, left + (start + (i === undefined ? 0 : this.data.length[i]) - this.from) * scale + 1);
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(from, this.top + row * this.pitch - 1, Math.max(3, to - from), this.pitch - gap + 2);
    }
    drawBars(pen, left, room, gap, bad, ground) {
      const scale = room / (this.to - this.from), high = this.pitch - gap;
      pen.save();
      pen.beginPath(); pen.rect(left, 0, room, this.pitch * this.byRow.length + this.top); pen.clip();
      this.byRow.forEach((row, at) => {
        const y = this.top + at * this.pitch;
        let covered = -1;
        for (const i of row) {
          const start = this.data.start[i], end = start + this.data.length[i];
          if (end < this.from || start > this.to) continue;
          const x = left + (start - this.from) * scale, width = Math.max((end - start) * scale, 0.7);
          if (x + width < covered + 0.35) continue;
          pen.fillStyle = colour(this.data.category[i]);
          pen.fillRect(x, y, width, high);
          if (width > 5) { pen.fillStyle = ground; pen.fillRect(x + width - 0.6, y, 0.6, high); }
          covered = x + width;
        }
      });
      pen.fillStyle = bad;  // drawn last, so that short ones remain visible
      for (const i of this.bad) {
        const x = left + (this.data.start[i] - this.from) * scale, mark = Math.max(3, high / 3);
        pen.fillRect(x, this.top + this.data.row[i] * this.pitch + high - mark, Math.max(this.data.length[i] * scale, 3), mark);
      }
      pen.restore();
    }
    /* Draws one pixel per cell into a small image and stretches it row by row: fast enough for every frame. */
    drawCells(pen, left, room, gap) {
      const pixels = this.data.pixels, all = this.data.end - this.data.begin, rows = this.data.rows.length;
      const columns = Math.ceil(room * (window.devicePixelRatio || 1)), per = (this.to - this.from) / all * pixels / columns;
      const first = (this.from - this.data.begin) / all * pixels, weights = new Float32Array(16);
      const small = this.small || (this.small = document.createElement("canvas"));
      small.width = columns;
      small.height = rows;
      const picture = new ImageData(columns, rows), out = new Uint32Array(picture.data.buffer);
      for (let row = 0; row < rows; row++) {
        const base = row * pixels;
        for (let c = 0; c < columns; c++) {
          const from = Math.max(0, Math.floor(first + c * per)), to = Math.min(pixels, Math.max(from + 1, Math.floor(first + (c + 1) * per)));
          if (first + (c + 1) * per <= 0 || from >= pixels) continue;
          let sum = 0, which = 0;
          weights.fill(0);
          for (let k = from; k < to; k++) {
            const cell = this.cells[base + k], place = cell >> 4;
            if (!cell) continue;
            sum += cell & 15;
            weights[place] += cell & 15;
            if (weights[place] > weights[which]) which = place;
          }
          if (sum) out[row * columns + c] = RAW[(which - 1) % RAW.length] | Math.round(255 * (0.12 + 0.88 * sum / (15 * (to - from)))) << 24;
        }
      }
      small.getContext("2d").putImageData(picture, 0, 0);
      pen.imageSmoothingEnabled = false;
      for (let row = 0; row < rows; row++) pen.drawImage(small, 0, row, columns, 1, left, this.top + row * this.pitch, room, this.pitch - gap);
    }
    drawLabels(pen, left, ink, line, wide, high) {
      pen.fillStyle = ink;
      pen.font = `12px ${FONT}`;
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      const every = Math.ceil(13 / this.pitch);
      this.data.rows.forEach((name, row) => {
        if (row % every) return;
        pen.fillText(cut(name, left - 8, "12px"), 0, this.top + row * this.pitch + this.pitch / 2);
      });
      const [ticks, step] = timeTicks(this.from, this.to, (wide - left) / 90), scale = (wide - left) / (this.to - this.from);
      pen.textBaseline = "alphabetic";
      for (const t of ticks) {
        const x = left + (t - this.from) * scale;
        pen.fillStyle = line;
        pen.fillRect(x, this.top, 1, high - BOTTOM - this.top + 4);
        pen.fillStyle = ink;
        pen.textAlign = x > wide - 40 ? "right" : x < left + 10 ? "left" : "center";
        pen.fillText(clock(t, step, this.to), x, high - 7);
      }
    }
  }

  /* A chain of tasks over time: [{name, place, start, end, waited}] */
  function chain(steps, begin, end, label) {
    const draw = (room, wide, said, heard) => {
      const high = 74;
      const svg = shape("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, role: "img", "aria-label": said, tabindex: "0" });
      const x = (t) => 2 + (wide - 4) * (t - begin) / Math.max(end - begin, 1e-9);
      svg.append(shape("rect", { x: 2, y: 10, width: wide - 4, height: 30, fill: "var(--idle)", rx: 4 }));
      for (const step of steps)
        svg.append(shape("rect", { x: x(step.start), y: 10, width: Math.max(0.8, x(step.end) - x(step.start) - 0.5), height: 30, fill: colour(step.place) }));
      const [ticks, tick] = timeTicks(begin, end, wide / 100);
      for (const t of ticks) {
        svg.append(shape("line", { class: "axis", x1: x(t), x2: x(t), y1: 40, y2: 46 }));
        svg.append(shape("text", { x: x(t), y: 60, "text-anchor": x(t) > wide - 40 ? "end" : x(t) < 20 ? "start" : "middle" }, clock(t, tick, end)));
      }
      const tell = (step) => rowsOf(step.name, [[step.category, "", colour(step.place)], ["waited", seconds(step.waited)], ["run time", seconds(step.end - step.start)]]);
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect(), t = begin + (end - begin) * (event.clientX - box.left - 2) / (box.width - 4);
        const hit = steps.find((step) => step.start - step.waited <= t && t <= step.end);
        if (hit) showTip(room, event.clientX - box.left, event.clientY - box.top, tell(hit)); else hideTip();
      });
      svg.addEventListener("pointerleave", hideTip);
      let at = -1;
      svg.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!by || !steps.length) return;
        event.preventDefault();
        at = Math.max(0, Math.min(steps.length - 1, at + by));
        showTip(room, x(steps[at].start), 30, tell(steps[at]));
        heard.textContent = shownTip.innerText;
      });
      svg.addEventListener("blur", hideTip);
      room.append(svg);
    };
    return drawing(null, label, draw, {});
  }

  return { printable, read, original, width, cut, element, colour, swatch, legend, count, many, number, range, percent, shareOf, bytes, seconds, estimate, stacked, underway, lines, table, cutOff, examples, meter, bars, whole, chain,
    gantt: (data, names, label) => new Gantt(data, names, label), Gantt, drawing, shape };
})();
