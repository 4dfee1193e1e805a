/* Formatting of counts, durations, sizes and shares, by the rules of shoal.core.quantities; a test compares both.
   Unknown values are shown as a dash. */
"use strict";
const Quantities = (() => {
  const MINUS = "−", UNKNOWN = "–", MINUTE = 60, HOUR = 3600, DAY = 86400, YEAR = 31557600;
  const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  const unknown = (n) => n === null || n === undefined;
  const nearest = (n) => Math.floor(n + 0.5);
  const grouped = (n) => n.toLocaleString("en-GB");
  const two = (n) => String(n).padStart(2, "0");
  const tenths = (n) => Math.abs(n - nearest(n)) <= 1e-9 * nearest(n) ? String(nearest(n)) : (nearest(n * 10) / 10).toFixed(1);
  const twoDigits = (n) => nearest(n * 10) < 100 ? tenths(n) : grouped(nearest(n));
  function threeDigits(n) {
    for (const scale of [1e5, 1e4, 1000, 100, 10]) if (nearest(n * scale) < 1000) return String(nearest(n * scale) / scale);
    return grouped(nearest(n));
  }

  const count = (n) => grouped(nearest(n));
  const many = (n, one) => `${count(n)} ${n === 1 ? one : one.endsWith("y") ? one.slice(0, -1) + "ies" : one + "s"}`;
  const number = (n) => n < 0 ? MINUS + number(-n) : n > 0 && n < 1e-5 ? "< 0.00001" : threeDigits(n);
  const range = (least, most) => least === most ? number(least) : `${number(least)}–${number(most)}`;
  /* For labels of an axis. */
  const compact = (n) => n >= 1e6 ? threeDigits(n / 1e6) + " M" : n >= 1e4 ? threeDigits(n / 1e3) + " k" : number(n);
  function percent(share) {
    if (unknown(share)) return UNKNOWN;
    if (share < 0) return MINUS + percent(-share);
    const tenth = nearest(share * 1000), whole = nearest(share * 100);
    if (tenth < 100) return tenth ? (tenth / 10).toFixed(1) + " %" : share ? "< 0.1 %" : "0 %";
    return grouped(whole === 100 && share < 1 ? 99 : whole) + " %";
  }
  const shareOf = (part, whole) => whole ? percent(part / whole) : "100 %";
  function bytes(n) {
    if (n < 0) return MINUS + bytes(-n);
    if (n > 0 && n < 1) return "< 1 B";
    if (nearest(n) < 1000) return nearest(n) + " B";
    for (const unit of UNITS) {
      n /= 1024;
      if (nearest(n) < 1000 || unit === "EiB") return threeDigits(n) + " " + unit;
    }
  }
  function seconds(s) {
    if (unknown(s)) return UNKNOWN;
    if (s < 0) return MINUS + seconds(-s);
    if (s < 1e-6) return s ? "< 1 µs" : "0 s";
    if (nearest(s * 1e6) < 1000) return twoDigits(s * 1e6) + " µs";
    if (nearest(s * 1e3) < 1000) return twoDigits(s * 1e3) + " ms";
    if (nearest(s * 10) < 600) return tenths(s) + " s";
    const whole = nearest(s), minutes = nearest(s / MINUTE), hours = nearest(s / HOUR), days = nearest(s / DAY);
    if (whole < HOUR) return Math.floor(whole / 60) + " min " + two(whole % 60) + " s";
    if (minutes < 48 * 60) return Math.floor(minutes / 60) + " h " + two(minutes % 60) + " min";
    if (hours < 100 * 24) return Math.floor(hours / 24) + " d " + hours % 24 + " h";
    return days < 1000 ? days + " d" : threeDigits(s / YEAR) + " years";
  }
  /* Estimates are rounded to one number and one unit. */
  function estimate(s) {
    if (unknown(s)) return UNKNOWN;
    if (s <= 0) return "0 s";
    for (const [unit, size] of [["s", 1], ["min", MINUTE]]) if (nearest(s / size) < 90) return Math.max(1, nearest(s / size)) + " " + unit;
    return nearest(s / HOUR) < 48 ? twoDigits(s / HOUR) + " h" : twoDigits(s / DAY) + " d";
  }

  return { count, many, number, range, compact, percent, shareOf, bytes, seconds, estimate };
})();
