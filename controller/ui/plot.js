// Small live plots over time, drawn as SVG. A gap in the data is a gap in the line.

import { el, svg } from "./dom.js";
import { duration, number } from "./format.js";

const LEFT = 46;
const RIGHT = 8;
const TOP = 8;

/** At most `count` round tick values from 0 to just above `most`. */
export function ticks(most, count = 3, whole = false) {
  if (!(most > 0)) return [0, 1];
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  if (whole) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let value = 0; value < most + step * 0.999; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

/** Round tick values that cover `low` to `high`, zero among them where it lies between. */
export function rangeTicks(low, high, count = 4) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let i = Math.floor(low / step); i <= Math.ceil(high / step); i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** Runs of consecutive known points: unknown values and long silences break the line. */
export function runs(samples, key, longestGapS) {
  const found = [];
  let run = [];
  let before = null;
  for (const sample of samples) {
    const value = sample[key];
    const broken = value === null || value === undefined || (before !== null && sample.t - before > longestGapS);
    if (broken && run.length) { found.push(run); run = []; }
    if (value !== null && value !== undefined) run.push([sample.t, value]);
    before = sample.t;
  }
  if (run.length) found.push(run);
  return found;
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const stepped = (points) => points.flatMap(([x, y], i) => (i ? [[x, points[i - 1][1]], [x, y]] : [[x, y]]));

export class TimePlot {
  /**
   * spec: {title, unit, height, series: [{key, name, colour, dashed, filled, colourOf}], step, whole, axis}
   * axis: whether the time axis is labelled (the last of a stack).  colourOf: colour by value, for steps.
   */
  constructor(host, spec) {
    this.spec = spec;
    this.readout = el("span", { class: "readout" });
    this.keys = spec.series.map((s) =>
      el("span", { class: s.dashed ? "key dashed" : "key", series: s.colour }, s.colourOf ? null : el("i", { "aria-hidden": "true" }), s.name));
    this.canvas = svg("svg", { role: "img", height: spec.height });
    host.append(el("div", { class: "plot" },
      el("div", { class: "plot-head" }, el("b", { text: spec.title }), ...this.keys, this.readout), this.canvas));
    this.hoverAt = null;
    this.canvas.addEventListener("pointermove", (event) => {
      this.hoverAt = event.clientX - this.canvas.getBoundingClientRect().left;
      this.draw(this.samples, this.now, this.windowS);
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.hoverAt = null;
      this.draw(this.samples, this.now, this.windowS);
    });
  }

  /** samples: [{t: unix s, ...}] ascending; now and windowS in s. */
  draw(samples, now, windowS) {
    Object.assign(this, { samples, now, windowS });
    const { spec } = this;
    const width = Math.max(240, this.canvas.clientWidth || 600);
    const bottom = spec.height - (spec.axis ? 20 : 6);
    const seen = samples.filter((s) => s.t >= now - windowS - 5);
    this.known = spec.series.filter((line) => !line.dashed || seen.some((s) => s[line.key] !== null && s[line.key] !== undefined));
    spec.series.forEach((line, i) => { this.keys[i].hidden = !this.known.includes(line); });
    const most = Math.max(0, ...seen.flatMap((s) => spec.series.map((line) => s[line.key] ?? 0)));
    const marks = ticks(most, 3, spec.whole);
    const top = marks.at(-1);
    const x = (t) => LEFT + (width - LEFT - RIGHT) * (1 - (now - t) / windowS);
    const y = (value) => bottom - (bottom - TOP) * (value / top);
    const parts = marks.flatMap((mark) => [
      svg("line", { class: mark ? "gridline" : "axis", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
      svg("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end", text: number(mark) })]);
    for (const line of this.known) parts.push(...this.#trace(line, seen, x, y, bottom));
    if (spec.axis) parts.push(...this.#timeAxis(width, windowS, spec.height));
    parts.push(...this.#cursor(seen, x, bottom));
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${spec.height}`);
    this.canvas.setAttribute("aria-label", this.#inWords(seen));
    this.canvas.replaceChildren(...parts);
  }

  #trace(line, seen, x, y, bottom) {
    return runs(seen, line.key, 15).flatMap((run) => {
      if (line.colourOf) return this.#blocks(line, run, x, y, bottom);
      let points = run.map(([t, value]) => [Math.max(LEFT, x(t)), y(value)]);
      if (this.spec.step) points = stepped(points);
      const area = `${path(points)}L${points.at(-1)[0]} ${bottom}L${points[0][0]} ${bottom}Z`;
      return [
        line.filled ? svg("path", { class: "fill", d: area, series: line.colour }) : null,
        svg("path", { class: line.dashed ? "trace dashed" : "trace", d: path(points), series: line.colour }),
      ].filter(Boolean);
    });
  }

  /** One block for each stretch of the same value, in the colour of the value; zero is a thick base line. */
  #blocks(line, run, x, y, bottom) {
    const found = [];
    for (let i = 0, j = 0; i < run.length; i = j) {
      while (j < run.length && run[j][1] === run[i][1]) j += 1;
      const left = Math.max(LEFT, x(run[i][0]));
      const right = Math.max(left + 1, x(run[Math.min(j, run.length - 1)][0]));
      const top = Math.min(y(run[i][1]), bottom - 3);
      found.push(svg("rect", { class: "block-depth", series: line.colourOf(run[i][1]), x: left, width: right - left, y: top, height: bottom - top }));
    }
    return found;
  }

  #timeAxis(width, windowS, height) {
    const count = width < 480 ? 2 : 5;
    return Array.from({ length: count + 1 }, (_, i) => svg("text", {
      x: LEFT + ((width - LEFT - RIGHT) * i) / count,
      y: height - 4,
      "text-anchor": i === 0 ? "start" : i === count ? "end" : "middle",
      text: i === count ? "now" : `-${duration((windowS * (count - i)) / count)}`,
    }));
  }

  #cursor(seen, x, bottom) {
    const at = this.hoverAt === null || !seen.length ? null
      : seen.reduce((best, s) => (Math.abs(x(s.t) - this.hoverAt) < Math.abs(x(best.t) - this.hoverAt) ? s : best));
    const shown = at ?? seen.at(-1);
    this.readout.textContent = !shown ? "no data yet" : this.known
      .map((line) => `${number(shown[line.key])}`).join(" · ") + (this.spec.unit ? ` ${this.spec.unit}` : "")
      + (at ? `, ${duration(this.now - at.t)} ago` : "");
    return at ? [svg("line", { class: "cursor", x1: x(at.t), x2: x(at.t), y1: TOP, y2: bottom })] : [];
  }

  #inWords(seen) {
    const about = this.known.map((line) => {
      const values = seen.map((s) => s[line.key]).filter((v) => v !== null && v !== undefined);
      if (!values.length) return `${line.name} unknown`;
      return `${line.name} now ${number(values.at(-1))}, from ${number(Math.min(...values))} to ${number(Math.max(...values))}`;
    });
    return `${this.spec.title}: ${about.join("; ")}`;
  }
}
