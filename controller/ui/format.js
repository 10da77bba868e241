// Numbers, times and depths as people read them. null is "unknown", never zero.

const digits = (value) => (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "unknown";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toLocaleString("en", { maximumFractionDigits: digits(value) });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function clock(unixS) {
  if (unixS === null || unixS === undefined) return "unknown";
  const date = new Date(unixS * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("sv")} ${time}`;
}

export const armName = (arm) =>
  !arm ? "unknown" : arm.depth > 0 ? `depth ${arm.depth}` : `off${arm.gear && arm.gear !== "on" ? `, ${arm.gear}` : ""}`;

export function armColour(arm) {
  if (!arm) return "var(--off)";
  if (arm.depth <= 0) return "var(--off)";
  return arm.depth <= 4 ? `var(--depth-${arm.depth})` : "var(--depth-n)";
}
