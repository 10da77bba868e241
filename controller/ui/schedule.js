// The schedule over batch size, with what the policy expects of every depth.

import { el, svg } from "./dom.js";
import { armColour, armName, number } from "./format.js";
import { rangeTicks } from "./plot.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 10;
const HEIGHT = 230;
const BLOCK = 26;

const sameArm = (a, b) => a && b && a.depth === b.depth && (a.depth > 0 || a.gear === b.gear);

/**
 * view: {rows: [{min_batch_size, arm}], lines: [{arm, points: [{batch_size, value, error}]}], title,
 *        curves: [{arm, points: [{batch_size, tok_s, error_tok_s}]}], batchSize, largest}
 */
export function drawSchedule(host, view) {
  const width = Math.max(240, host.clientWidth || 420);
  const height = view.lines.length ? HEIGHT : 78;
  const x = (size) => LEFT + ((width - LEFT - RIGHT) * Math.log2(Math.max(1, size))) / Math.log2(view.largest);
  const bottom = height - BLOCK - 24;
  const parts = view.lines.length ? curves(view.lines, x, bottom, width) : [];
  parts.push(...blocks(view.rows, x, height - BLOCK - 18, view.largest), ...sizeAxis(x, view.largest, height));
  if (view.batchSize) parts.push(...here(view.batchSize, x, view.largest, height));
  const label = `Depth by batch size: ${view.rows.map((row) => `from ${row.min_batch_size}: ${armName(row.arm)}`).join(", ") || "no schedule in force"}`;
  host.replaceChildren(...key(view), svg("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, height }, ...parts));
}

function key(view) {
  if (!view.lines.length) return [];
  return [el("div", { class: "plot-head" }, el("b", { text: view.title }), ...view.lines.map((line) =>
    el("span", { class: "key", series: armColour(line.arm) }, el("i", { "aria-hidden": "true" }), armName(line.arm))))];
}

/** Lines with their error as a band; the scale is that of the lines, wide bands are cut. */
function curves(lines, x, bottom, width) {
  const values = lines.flatMap((line) => line.points.map((p) => p.value));
  const marks = rangeTicks(Math.min(0, ...values), Math.max(...values, 1));
  const [low, high] = [marks[0], marks.at(-1)];
  const y = (value) => bottom - ((bottom - TOP) * (Math.min(high, Math.max(low, value)) - low)) / (high - low);
  const path = (list) => list.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const parts = marks.flatMap((mark) => [
    svg("line", { class: mark ? "gridline" : "axis", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
    svg("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end", text: number(mark) })]);
  for (const line of lines) {
    const edge = (sign) => line.points.map((p) => [x(p.batch_size), y(p.value + sign * p.error)]);
    if (line.points.some((p) => p.error)) {
      parts.push(svg("path", { class: "band", series: armColour(line.arm), d: `${path(edge(1))}${path(edge(-1).reverse()).replace("M", "L")}Z` }));
    }
    parts.push(svg("path", { class: "trace", series: armColour(line.arm), d: path(edge(0)) }));
  }
  return parts;
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
  return `${number(Math.round(point.tok_s))}${error} at ${Math.round(point.batch_size)}`;
}
