// The schedule over batch size, with what the policy expects of every depth.

import { el, svg } from "./dom.js";
import { armColour, armName, number } from "./format.js";
import { ticks } from "./plot.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 10;
const HEIGHT = 230;
const BLOCK = 26;

const sameArm = (a, b) => a && b && a.depth === b.depth && (a.depth > 0 || a.gear === b.gear);

/**
 * view: {rows: [{min_batch_size, arm}], curves: [{arm, points: [{batch_size, tok_s, error_tok_s}]}],
 *        source: who says so, batchSize, largest}
 */
export function drawSchedule(host, view) {
  const width = Math.max(240, host.clientWidth || 420);
  const hasCurves = view.curves.some((curve) => curve.points.length > 1);
  const height = hasCurves ? HEIGHT : 78;
  const largest = Math.max(view.largest, 4, ...view.rows.map((row) => row.min_batch_size * 2));
  const x = (size) => LEFT + ((width - LEFT - RIGHT) * Math.log2(Math.max(1, size))) / Math.log2(largest);
  const bottom = height - BLOCK - 24;
  const parts = hasCurves ? curves(view, x, bottom, width) : [];
  parts.push(...blocks(view.rows, x, height - BLOCK - 18, largest), ...sizeAxis(x, largest, height));
  if (view.batchSize) parts.push(...here(view.batchSize, x, largest, height));
  const label = `Depth by batch size: ${view.rows.map((row) => `from ${row.min_batch_size}: ${armName(row.arm)}`).join(", ") || "no schedule in force"}`;
  const key = hasCurves ? [el("div", { class: "plot-head" }, el("b", { text: `Tokens per second, ${view.source}` }),
    ...view.curves.filter((c) => c.points.length > 1).map((c) =>
      el("span", { class: "key", series: armColour(c.arm) }, el("i", { "aria-hidden": "true" }), armName(c.arm))))] : [];
  host.replaceChildren(...key, svg("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, height }, ...parts));
}

function curves(view, x, bottom, width) {
  const most = Math.max(1, ...view.curves.flatMap((c) => c.points.map((p) => p.tok_s + (p.error_tok_s ?? 0))));
  const marks = ticks(most, 4);
  const y = (value) => bottom - (bottom - TOP) * (Math.max(0, value) / marks.at(-1));
  const lines = marks.flatMap((mark) => [
    svg("line", { class: mark ? "gridline" : "axis", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
    svg("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end", text: number(mark) })]);
  for (const curve of view.curves.filter((c) => c.points.length > 1)) {
    const points = curve.points.map((p) => [x(p.batch_size), p]);
    const edge = (sign) => points.map(([px, p]) => [px, y(p.tok_s + sign * (p.error_tok_s ?? 0))]);
    const text = (list) => list.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    if (points.some(([, p]) => p.error_tok_s)) {
      lines.push(svg("path", { class: "band", series: armColour(curve.arm), d: `${text(edge(1))}${text(edge(-1).reverse()).replace("M", "L")}Z` }));
    }
    lines.push(svg("path", { class: "trace", series: armColour(curve.arm), d: text(edge(0)) }));
  }
  return lines;
}

function blocks(rows, x, top, largest) {
  return rows.flatMap((row, i) => {
    const from = x(row.min_batch_size);
    const to = i + 1 < rows.length ? x(rows[i + 1].min_batch_size) : x(largest);
    const wide = to - from > 22;
    return [
      svg("rect", { class: "block-depth", series: armColour(row.arm), x: from + 1, width: Math.max(1, to - from - 2), y: top, height: BLOCK, rx: 5 }),
      wide ? svg("text", { class: "on-block", x: (from + to) / 2, y: top + BLOCK / 2 + 4, "text-anchor": "middle", text: row.arm.depth > 0 ? String(row.arm.depth) : "off" }) : null,
    ].filter(Boolean);
  });
}

function sizeAxis(x, largest, height) {
  const sizes = [];
  for (let size = 1; size <= largest; size *= largest > 64 ? 4 : 2) sizes.push(size);
  return sizes.map((size) => svg("text", { x: x(size), y: height - 4, "text-anchor": "middle", text: String(size) }));
}

function here(size, x, largest, height) {
  const at = x(Math.min(size, largest));
  return [
    svg("line", { class: "here", x1: at, x2: at, y1: TOP - 4, y2: height - 18 }),
    svg("text", { class: "here-label", x: at + 5, y: TOP + 5, text: `now ${size}`, "text-anchor": at > x(largest) - 50 ? "end" : "start", dx: at > x(largest) - 50 ? -10 : 0 }),
  ];
}

export function drawScheduleTable(table, view) {
  table.hidden = view.rows.length === 0;
  const inForce = view.rows.findLast((row) => view.batchSize && row.min_batch_size <= view.batchSize);
  table.tBodies[0].replaceChildren(...view.rows.map((row, i) => {
    const next = view.rows[i + 1]?.min_batch_size;
    const range = next === undefined ? `${row.min_batch_size} and more` : next - 1 === row.min_batch_size ? `${row.min_batch_size}` : `${row.min_batch_size} to ${next - 1}`;
    return el("tr", { class: row === inForce ? "now" : "" },
      el("td", { text: range }),
      el("td", {}, el("span", { class: "chip", arm: armColour(row.arm), text: armName(row.arm) })),
      el("td", { text: expected(view, row, row === inForce ? view.batchSize : row.min_batch_size) }));
  }));
}

/** The curve's value at the largest known batch size up to `size`, else at the next one. */
function expected(view, row, size) {
  const points = view.curves.find((curve) => sameArm(curve.arm, row.arm))?.points ?? [];
  const point = points.findLast((p) => p.batch_size <= size && p.batch_size >= row.min_batch_size) ?? points.find((p) => p.batch_size >= row.min_batch_size);
  if (!point) return "not known";
  const error = point.error_tok_s ? ` ± ${number(Math.round(point.error_tok_s))}` : "";
  return `${number(Math.round(point.tok_s))}${error} at ${point.batch_size}`;
}
