/** How figures are written: percent wherever people read, thousands parted, units that stay readable. */

export const NOTHING = "–";

/** The same words, beginning with a capital. */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const MINUS = "−";
const formats = new Map();

function format(least, most, more = {}) {
  const key = `${least}/${most}/${JSON.stringify(more)}`;
  if (!formats.has(key)) {
    formats.set(
      key,
      new Intl.NumberFormat("en-US", { minimumFractionDigits: least, maximumFractionDigits: most, ...more }),
    );
  }
  return formats.get(key);
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const signed = (text) => text.replace("-", MINUS);

/** A whole number with its thousands parted. */
export const whole = (value) => (isNumber(value) ? signed(format(0, 0).format(value)) : NOTHING);

/** How many of something: 1 run, 3 runs. */
export const counted = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;

/** A number with about this many significant digits. */
export function number(value, digits = 4) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= 1e9)) return signed(value.toExponential(Math.max(0, digits - 2)));
  const most = size === 0 ? 0 : Math.max(0, Math.min(8, digits - 1 - Math.floor(Math.log10(size))));
  return signed(format(0, most).format(value));
}

/** A number with a fixed count of decimals, so that a column of them is aligned. */
export const fixed = (value, decimals = 2) =>
  isNumber(value) ? signed(format(decimals, decimals).format(value)) : NOTHING;

/** A share (0.12) as percent. */
export function percent(value, decimals = 1, plus = false) {
  if (!isNumber(value)) return NOTHING;
  if (Math.abs(value) >= 1e7) return value > 0 ? "> 10⁹%" : "< −10⁹%";
  const places = Math.abs(value) >= 10 ? 0 : decimals;
  return `${signed(format(places, places, plus ? { signDisplay: "exceptZero" } : {}).format(value * 100))}%`;
}

/** A large number in short: 12.3 k, 4.56 M, 1.20 G. step: what it is told apart from, where that needs more digits. */
export function short(value, step = null) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  for (const [unit, name] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size < unit) continue;
    const digits = (value / unit).toPrecision(3).replace(/e\+\d+/, "");
    const needed = step === null ? 0 : decimalsOf(step / unit);
    const isEnough = needed <= (digits.split(".")[1] ?? "").length;
    return `${signed(isEnough ? digits : (value / unit).toFixed(needed))} ${name}`;
  }
  return number(value, 3);
}

/** Bytes, by powers of 1024. */
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let at = 0;
  while (Math.abs(size) >= 1000 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${at === 0 ? whole(size) : fixed(size, size >= 100 ? 0 : 1)} ${units[at]}`;
}

/** Seconds as people say them: 45 s, 12 min 05 s, 3 h 12 min, 2 d 4 h. */
export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const all = Math.max(0, seconds);
  if (all < 10) return `${fixed(all, 1)} s`;
  const total = Math.round(all);
  if (total < 60) return `${total} s`;
  const two = (value) => String(value).padStart(2, "0");
  if (total < 3600) return `${Math.floor(total / 60)} min ${two(total % 60)} s`;
  if (total < 86400) return `${Math.floor(total / 3600)} h ${two(Math.floor((total % 3600) / 60))} min`;
  return `${Math.floor(total / 86400)} d ${Math.floor((total % 86400) / 3600)} h`;
}

/** Seconds in one unit, for a tile: 45 s, 59 min, 3.2 h, 2.5 d. */
export function brief(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const all = Math.max(0, seconds);
  if (all < 60) return `${Math.round(all)} s`;
  if (all < 3600) return `${Math.round(all / 60)} min`;
  return all < 86400 ? `${fixed(all / 3600, 1)} h` : `${fixed(all / 86400, 1)} d`;
}

const two = (value) => String(value).padStart(2, "0");

/** A moment (seconds since 1970) in the reader's own time zone. */
export function moment(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return NOTHING;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** A moment of a market, in UTC, as the data has it. */
export function marketTime(seconds, withTime = true) {
  if (!isNumber(seconds)) return NOTHING;
  const at = new Date(seconds * 1000);
  if (Number.isNaN(at.getTime())) return NOTHING;
  const text = at.toISOString();
  return withTime ? `${text.slice(0, 10)} ${text.slice(11, 16)}` : text.slice(0, 10);
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Marks of an axis of time, so far apart in seconds; a new day tells its date below. */
export function timeMarks(seconds, step, isMarket) {
  let before = "";
  return seconds.map((each) => {
    const at = new Date(each * 1000);
    const [year, month, day, hour, minute, second] = isMarket
      ? [
          at.getUTCFullYear(),
          at.getUTCMonth(),
          at.getUTCDate(),
          at.getUTCHours(),
          at.getUTCMinutes(),
          at.getUTCSeconds(),
        ]
      : [at.getFullYear(), at.getMonth(), at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds()];
    const [above, below] =
      step >= 86400 * 28
        ? [MONTHS[month], String(year)]
        : step >= 86400
          ? [`${day} ${MONTHS[month]}`, String(year)]
          : [`${two(hour)}:${two(minute)}${step < 60 ? `:${two(second)}` : ""}`, `${day} ${MONTHS[month]} ${year}`];
    const text = below === before ? above : `${above}\n${below}`;
    before = below;
    return text;
  });
}

/** How long ago a moment was, roughly. */
export function ago(seconds, now = Date.now() / 1000) {
  if (!isNumber(seconds)) return NOTHING;
  const past = now - seconds;
  if (past < 45) return "just now";
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return past < 86400 * 14 ? `${Math.round(past / 86400)} d ago` : moment(seconds).slice(0, 10);
}

const WRITERS = {
  percent: (value) => percent(value, Math.abs(value) < 0.001 && value !== 0 ? 3 : 2),
  change: (value) => percent(value, 2, true),
  number: (value) => number(value),
  ratio: (value) => fixed(value, 2),
  whole,
  steps: short,
  rate: (value) => `${short(value)}/s`,
  seconds: duration,
  bytes,
  watt: (value) => `${whole(value)} W`,
  time: moment,
  market: marketTime,
  money: (value) => fixed(value, 2),
};

/** Decimals with which the marks of a step are told apart, and none is rounded: steps of 0.025 need three. */
function decimalsOf(step) {
  let decimals = 0;
  while (decimals < 8 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals += 1;
  return decimals;
}

/** A value on an axis: as many decimals as the steps between its marks need. */
export function mark(value, kind, step) {
  if (kind === "percent") return `${fixed(value * 100, decimalsOf(step * 100))}%`;
  if (kind === "number" || kind === "money" || kind === "ratio")
    return Math.abs(value) >= 1e6 || (value !== 0 && step < 1e-6) ? number(value, 3) : fixed(value, decimalsOf(step));
  if (kind === "steps") return short(value, step);
  if (kind === "rate") return `${short(value, step)}/s`;
  return figure(value, kind);
}

/** A value as its kind is written; anything that is not a number is shown as it is. */
export function figure(value, kind = "number") {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((part) => figure(part, kind)).join(", ");
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number") return String(value);
  return isNumber(value) ? (WRITERS[kind] ?? WRITERS.number)(value) : NOTHING;
}
