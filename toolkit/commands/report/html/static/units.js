// Numbers, times and axis ticks as text. Times are UTC, as in the job's log.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE,
  15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY];
const WHOLE_STEPS = [1, 2, 5].flatMap((d) => Array.from({ length: 12 }, (_, power) => d * 10 ** power)).sort((a, b) => a - b);

/** A number for the eye: about four digits; "–" for a gap. */
function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return signed(value.toLocaleString("en-US"));
  if (size >= 1e9 || size < 1e-4) return signed(value.toExponential(2));
  const decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3 - Math.floor(Math.log10(size));
  return signed(value.toLocaleString("en-US", { minimumFractionDigits: size < 1 ? 0 : decimals, maximumFractionDigits: decimals }));
}

function signed(text) {
  return text.replace(/^-/, "−");
}

function withUnit(text, label) {
  return label ? `${text}\u00a0${label}` : text;
}

function two(value) {
  return String(value).padStart(2, "0");
}

/** The decimals that seconds need beside steps of *step* seconds. */
function fraction(seconds, step) {
  if (step >= 1) return "";
  return (seconds - Math.floor(seconds)).toFixed(step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3).slice(1);
}

function clock(seconds, step = 1) {
  const size = step >= 1 ? Math.round(Math.abs(seconds)) : Math.abs(seconds) + 1e-7;
  const text = `${Math.floor(size / HOUR)}:${two(Math.floor(size / MINUTE) % 60)}:${two(Math.floor(size) % 60)}${fraction(size, step)}`;
  return seconds < 0 && /[1-9]/.test(text) ? `−${text}` : text;
}

function dayTime(seconds, step = 1) {
  const at = new Date(Math.floor(seconds + 1e-7) * 1000);
  const minutes = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  return step >= MINUTE ? minutes : `${minutes}:${two(at.getUTCSeconds())}${fraction(seconds + 1e-7, step)}`;
}

function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
}

/** A place on an x axis in full, as the cursor says it. *step*: how far its points are apart. */
function place(axis, x, step) {
  if (axis.kind === "time") return `${day(x)} ${dayTime(x, Math.min(step, 1))}`;
  if (axis.kind === "elapsed") return clock(x, Math.min(step, 1));
  return `${axis.name || axis.kind} ${withUnit(number(x), axis.label)}`;
}

/** *text* if it fits into *room* characters; else *instead*, or as much of it as fits. */
function short(text, room, instead = "") {
  return text.length <= room ? text : instead || `${text.slice(0, room - 1)}…`;
}

function axisLabel(axis) {
  const name = axis.name || { time: "time", elapsed: "time since the start" }[axis.kind] || axis.kind;
  return axis.label && axis.label !== name ? `${name} (${axis.label})` : name;
}

/** Texts of the ticks of an x axis; the date stands below the first tick and below the first one of each day. */
function xTicks(axis, ticks, step) {
  if (axis.kind === "elapsed") return ticks.map((x) => clock(x, step));
  if (axis.kind !== "time") return ticks.map(tick);
  let before = "";
  return ticks.map((x) => {
    const today = day(x);
    const text = step >= DAY ? today : dayTime(x, step) + (today === before ? "" : `\n${today}`);
    before = today;
    return text;
  });
}

/** A tick's number, with the decimals that it needs. */
function tick(value) {
  return value === null ? "" : signed(Number(value.toPrecision(10)).toLocaleString("en-US", { maximumFractionDigits: 12 }));
}

function xSteps(axis) {
  if (axis.kind === "time" || axis.kind === "elapsed") return TIME_STEPS;
  return axis.kind === "step" || axis.kind === "epoch" ? WHOLE_STEPS : undefined;
}
