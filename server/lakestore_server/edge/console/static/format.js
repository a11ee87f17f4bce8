// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(Math.round(value)));
export const brief = (value) => (value === null || value === undefined ? "–" : value < 10000 ? whole.format(Math.round(value)) : short.format(value));
export const rate = (value) => (value < 10 ? String(Math.round(value * 10) / 10) : brief(value));

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (bytes < 1024) return `${unit === "B" ? Math.round(bytes) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return seconds < 10 ? `${Math.max(seconds, 0).toFixed(1)} s` : `${Math.round(seconds)} s`;
}

export const plural = (number, noun, show = count) => `${show(number)} ${noun}${number === 1 ? "" : "s"}`;
export const clock = (us) => (us ? new Date(us / 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "–");
export const hour = (us) => new Date(us / 1000).toISOString().slice(11, 16);
