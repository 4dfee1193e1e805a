/* The framework of live pages: receives changed parts from the server, and lets each section redraw those that it shows.
   Data from the server is inserted as text, never as markup. The script of each page defines its sections. */
"use strict";
const Frame = (() => {
  const P = Plots, make = P.element;
  const parts = {}, dirty = new Set(), sections = [];
  let received = performance.now(), asked = false, page = {};

  async function fetched(path) {
    const answer = await fetch("api/v1/" + path, { cache: "no-store" }), words = await answer.text();
    if (!answer.ok) throw new Error((() => { try { return P.read(words).error; } catch { return P.printable(words); } })());
    return words;
  }
  const get = (path) => fetched(path).then(P.read);
  const getText = (path) => fetched(path).then(P.printable);
  const GONE = "The web server has stopped. Use 'shoal web' to show the run again.";
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
  /* Registers a listener without a section for changes of these parts. */
  function watch(needs, update) { sections.push({ needs, update }); }
  const text = (sentence, soft) => make("p", { class: soft ? "soft" : "" }, sentence);
  const rowsOf = (name) => {
    const found = [];
    for (let i = 0; Array.isArray(parts[`${name}.${i}`]); i++) found.push(...parts[`${name}.${i}`]);
    return found;
  };
  const is = (node) => node.matches(":hover") || node.contains(document.activeElement);
  /* Seconds since the last update arrived. */
  const since = () => (performance.now() - received) / 1000;

  const title = make("h1"), about = make("p", { class: "soft" }), status = make("p", { class: "status", role: "status" });
  const heard = make("div", { class: "heard", "aria-live": "polite", id: "heard" });
  function theme() {
    const root = document.documentElement;
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const button = make("button", { "aria-label": "switch between light and dark", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; say(); if (page.recolour) page.recolour(); } });
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
    say();
    return button;
  }

  /* Screen readers repeat every inserted text, so unchanged text is not inserted again. */
  function tell(words, lost) {
    status.className = lost ? "status lost" : "status";
    if (status.textContent !== words) status.textContent = words;
  }
  function draw() {
    asked = false;
    const changed = new Set(dirty);
    dirty.clear();
    page.head();
    for (const mine of sections) if (mine.needs.some((name) => changed.has(name))) mine.update(mine);
    window.shoalVersion = (window.shoalVersion || 0) + 1;
  }
  function take(event) {
    const fresh = P.read(event.data);
    for (const [name, value] of Object.entries(fresh)) {
      if (value === null) delete parts[name]; else parts[name] = value;
      dirty.add(name.split(".")[0]);
    }
    if (fresh[page.clock]) received = performance.now();
    const failed = Object.keys(parts).find((name) => name.startsWith("failed."));
    tell(failed ? parts[failed] : page.status(), Boolean(failed));
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }
  function listen() {
    const source = new EventSource("api/v1/events");
    source.onmessage = take;
    source.onerror = () => {
      tell("The server does not respond. Reconnecting …", true);
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);  // EventSource does not reconnect after an error status
    };
    source.addEventListener("over", () => { source.close(); tell(page.over, false); });
  }
  /* {head, status, clock: the part whose arrival dates the figures, over, footer, recolour, more} */
  function start(given) {
    page = given;
    document.getElementById("head").append(make("div", { class: "title" }, make("div", {}, title, about, status), make("div", { class: "tools" }, theme())), heard);
    const entries = make("nav", { "aria-label": "sections" }, make("ul", {}, ...sections.filter((mine) => mine.node).map((mine) => mine.entry)));
    document.getElementById("content").append(entries, ...sections.filter((mine) => mine.node).map((mine) => mine.node), ...(page.more || []), make("footer", {}, page.footer));
    listen();
  }
  return { parts, get, getText, said, section, watch, show, text, rowsOf, is, since, title, about, heard, start };
})();
