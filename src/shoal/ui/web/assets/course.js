/* Resource usage of an attempt over time: memory with its limit, and cores. A running attempt is sampled only while the
   page shows it. */
"use strict";
const Course = (() => {
  const P = Plots, make = P.element, FRACTION = 10000, MOST = 240, PAUSE = 1000, SHORT = 0.1, FAR = 6;

  /* Points are [age, peak memory since the previous point, total CPU seconds, total bytes read, total bytes written]. */
  function curves(points, first) {
    const memory = [], cores = [];
    let [since, , before] = first;
    for (const [age, bytes, cpu] of points) {
      memory.push([since, bytes]);
      if (age - since < SHORT && cores.length) continue;  // CPU time has the resolution of clock ticks: no rate over a very short time
      cores.push([since, Math.max(0, cpu - before) / Math.max(age - since, 0.01)]);
      [since, before] = [age, cpu];
    }
    return { memory, cores };
  }
  function sentence(points, given) {
    const [age, , cpu, read, written] = points[points.length - 1], most = Math.max(...points.map((p) => p[1]));
    return `Over ${P.seconds(age)}: peak memory ${P.bytes(most)}${given.memory ? ` of ${P.bytes(given.memory)}` : ""}, ${P.number(cpu / Math.max(age, 0.01))}`
      + `${given.cores ? ` of ${P.number(given.cores)}` : ""} cores busy on average, ${P.bytes(read)} read, ${P.bytes(written)} written.`;
  }
  function plots(points, first, given) {
    const begin = first[0], end = points[points.length - 1][0], all = curves(points, first);
    const near = (curve, amount) => amount && amount < FAR * Math.max(...curve.map((p) => p[1]));  // a much higher limit would flatten the curve
    const limited = (name, curve, amount, colour) => [{ name, points: curve, colour }, ...(near(curve, amount) ? [{ name: "limit", points: [[begin, amount]], colour: "var(--soft)" }] : [])];
    return {
      memory: { begin, end, series: limited("memory", all.memory, given.memory, P.colour(0)), label: "Memory of the attempt over time" },
      cores: { begin, end, series: limited("cores", all.cores, given.cores, P.colour(2)), label: "Cores used by the attempt over time" },
    };
  }

  /* An element that shows the usage of the task's last attempt, or of a chosen one, and reports the choice. */
  function of(task, chosen) {
    const room = make("div", { id: "task-course" }), told = make("p"), drawn = make("div", { class: "side" });
    const choice = make("select", { "aria-label": "attempt", onchange: () => { load(); chosen(Number(choice.value)); } });
    /* Returns whether there is a new attempt; it is selected if the previous latest one was. */
    const offer = () => {
      const numbers = [...task.attempts.map((a) => a.attempt), ...(task.running ? [task.running.attempt] : [])].reverse(), latest = !choice.length || choice.selectedIndex === 0, was = choice.length;
      if (numbers.length === was) return false;
      const kept = choice.value;
      choice.replaceChildren(...numbers.map((n) => make("option", { value: n }, `attempt ${n}`)));
      choice.value = latest ? numbers[0] : kept;
      choice.classList.toggle("hidden", numbers.length < 2);
      return latest;
    };
    offer();
    room.append(choice, told, drawn);
    room.tell = (now) => {
      task = now;
      if (!offer()) return false;
      load();
      return true;
    };
    let seen = [], figures = null, turn = 0;
    const there = () => room.isConnected && (!room.closest("dialog") || room.closest("dialog").open);
    function given(number) {
      const attempt = task.attempts.find((a) => a.attempt === number), asks = task.declared || {};
      return { memory: (attempt && attempt.memory_limit) || asks.memory || 0, cores: (asks.cores || 0) / FRACTION };
    }
    function draw(course) {
      if (course.going) seen = [...seen, ...course.points].slice(-MOST);
      const points = course.going ? seen : course.points;
      if (!points.length) { told.textContent = course.going ? "The task runs on another machine: no measurements are available here." : "No measurements: the attempt took less than a second, or it was a Python function call."; return; }
      told.textContent = sentence(points, given(course.attempt));
      if (course.going && points.length < 2) return;  // earlier usage is available when the attempt has ended
      const now = course.going ? plots(points.slice(1), points[0], given(course.attempt)) : plots(points, [0, 0, 0], given(course.attempt));
      if (figures) { figures.memory.tell(now.memory); figures.cores.tell(now.cores); return; }
      figures = { memory: P.lines({ ...now.memory, unit: P.bytes, caption: "Memory", high: 150 }), cores: P.lines({ ...now.cores, unit: P.number, caption: "Cores in use", high: 150 }) };
      drawn.replaceChildren(figures.memory, figures.cores);
    }
    async function load() {
      const mine = ++turn;
      figures = null; seen = []; drawn.replaceChildren();
      for (;;) {
        let course;
        try { course = await Frame.get(`tasks/${task.task}/course?attempt=${choice.value || 0}`); } catch (error) { told.textContent = Frame.said(error); return; }
        if (mine !== turn || !there()) return;
        draw(course);
        if (!course.going) return;
        await new Promise((done) => setTimeout(done, PAUSE));
        if (mine !== turn || !there()) return;
      }
    }
    requestAnimationFrame(() => load());
    return room;
  }
  return { of };
})();
