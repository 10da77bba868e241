// The status page: asks the sidecar every second and shows what it says.

import { ApiError, call } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { armColour, duration, number } from "./format.js";
import { drawLog } from "./log.js";
import { decisionsView, historySample, scheduleView, statusView } from "./model.js";
import { OverrideForm } from "./override.js";
import { TimePlot } from "./plot.js";
import { drawSchedule, drawScheduleTable } from "./schedule.js";

const EVERY_MS = 1000;
const SLOW_EVERY = 5;
const LOST_AFTER_S = 5;
const KEEP_S = 1900;
const LOG_ROWS = 12;

const samples = [];
let answeredAt = null;
let failure = null;
let turn = 0;
let benefit = null;
let policy = null;
let windowChosen = false;
let logRows = LOG_ROWS;
let spoken = "";

const plots = [
  new TimePlot(byId("plots"), { title: "Load", unit: "requests", height: 118, whole: true, series: [
    { key: "running", name: "running", colour: "var(--running)", filled: true },
    { key: "queued", name: "waiting", colour: "var(--queue)" }] }),
  new TimePlot(byId("plots"), { title: "Depth in use", unit: "", height: 92, whole: true, step: true, series: [
    { key: "depth", name: "draft tokens per step; 0, grey, is off", colour: "var(--quiet)", colourOf: (depth) => armColour({ depth }) }] }),
  new TimePlot(byId("plots"), { title: "Throughput", unit: "tok/s", height: 140, axis: true, series: [
    { key: "tokS", name: "output", colour: "var(--depth-1)", filled: true },
    { key: "predictedTokS", name: "predicted, without prefill", colour: "var(--predicted)", dashed: true }] }),
];

const form = new OverrideForm(() => { turn = 0; return refresh(); });

async function refresh() {
  try {
    const [status, past] = await Promise.all([call("v1/status"), call(`v1/history?since_unix_s=${samples.at(-1)?.t ?? 0}`)]);
    past.samples.map(historySample).forEach(remember);
    answeredAt = Date.now() / 1000;
    failure = null;
    if (turn % SLOW_EVERY === 0) await refreshSlowly();
    turn += 1;
    showStatus(statusView(status, samples, benefit));
    showSchedule(scheduleView(status, policy, benefit, samples));
  } catch (error) {
    failure = error;
    if (error instanceof ApiError && error.status === 401) byId("token").focus();
  }
  showLink();
  drawPlots();
}

/** What changes rarely: the benefit, the schedule with its curves, the log. */
async function refreshSlowly() {
  const onlyChanges = byId("only-changes").checked;
  const kinds = onlyChanges ? ["decision", "override"] : ["decision", "override", "event"];
  const pages = kinds.map((kind) => call(`v1/decisions?limit=100&kind=${kind}`));
  const [brought, decides, ...log] = await Promise.all([call("v1/benefit"), call("v1/policy"), ...pages]);
  benefit = brought;
  policy = decides;
  const rows = decisionsView(log, onlyChanges);
  drawLog(byId("log"), rows.slice(0, logRows));
  byId("log-more").hidden = rows.length <= logRows;
  byId("log-empty").hidden = rows.length > 0;
}

function showSchedule(schedule) {
  drawSchedule(byId("schedule-plot"), schedule);
  drawScheduleTable(byId("schedule-table"), schedule);
  setText("schedule-note", schedule.note);
}

function remember(sample) {
  if (samples.length && sample.t <= samples.at(-1).t) return;
  samples.push(sample);
  while (samples.length && samples[0].t < sample.t - KEEP_S) samples.shift();
}

function showStatus(view) {
  setText("engine", view.engine);
  setText("version", view.version);
  setText("mode", view.title);
  document.title = `${view.title} · specgov`;
  setText("since", view.since);
  setText("reason", view.reason);
  setText("why", view.why);
  setText("authority", view.authority);
  setText("authority-note", view.authorityNote);
  showType(view.type);
  const hero = byId("hero");
  hero.style.setProperty("--arm", view.colour);
  speak(`${view.title}. ${view.why}`, view.title);
  byId("figures").replaceChildren(...view.figures.map(figure));
  showWarnings(view.warnings);
  form.show(view.override);
  setText("override-now", view.override.inForce);
}

/** Left alone while it stays the same, so that it can be marked and copied. */
function showType(lines) {
  const list = byId("type");
  if (list.textContent === lines.join("")) return;
  const word = (text) => el("span", { text }); // each in one piece: "--" and "reason" on two lines is no option
  const code = (line) => el("code", {}, ...line.split(" ").flatMap((text, i) => (i ? [" ", word(text)] : [word(text)])));
  list.replaceChildren(...lines.map((line) => el("li", {}, code(line))));
}

/** A change of mode is read out once; the seconds that tick are not. */
function speak(sentence, title) {
  if (title === spoken) return;
  spoken = title;
  byId("announce").textContent = sentence;
}

function figure({ name, value, unit, note }) {
  const text = typeof value === "string" ? value : number(value);
  const known = value !== null && value !== undefined;
  return el("div", {}, el("dt", { text: name }), el("dd", { class: known ? "" : "unknown" }, text,
    known && unit ? el("small", { text: ` ${unit}` }) : null, note ? el("small", { text: ` ${note}` }) : null));
}

function showWarnings(warnings) {
  const list = byId("warnings");
  const wanted = JSON.stringify(warnings);
  if (list.dataset.shown === wanted) return;
  list.dataset.shown = wanted;
  list.replaceChildren(...warnings.map((warning) => el("li", { class: warning.bad ? "bad" : "" },
    el("b", { text: warning.title }), el("span", { text: warning.text }),
    warning.remedy ? el("span", { text: ` What helps: ${warning.remedy}` }) : null)));
}

function showLink() {
  const silentS = answeredAt === null ? null : Date.now() / 1000 - answeredAt;
  const lost = failure !== null && (silentS === null || silentS > LOST_AFTER_S || failure instanceof ApiError);
  byId("link").dataset.state = lost ? "lost" : answeredAt === null ? "waiting" : "live";
  setText("link-text", !lost ? (answeredAt === null ? "connecting" : "live")
    : failure instanceof ApiError ? failure.message
      : `The sidecar does not answer${silentS === null ? "" : `; what you see is ${duration(silentS)} old`}`);
}

function drawPlots() {
  if (!windowChosen) fitWindow();
  const windowS = Number(byId("window").value);
  const now = samples.at(-1)?.t ?? Date.now() / 1000;
  for (const plot of plots) plot.draw(samples, now, windowS);
}

/** The smallest window that shows all that is known, until somebody chooses one. */
function fitWindow() {
  const spanS = samples.length ? samples.at(-1).t - samples[0].t : 0;
  const options = [...byId("window").options].map((option) => option.value);
  byId("window").value = options.find((value) => Number(value) >= spanS) ?? options.at(-1);
}

async function start() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
  }
}

byId("window").addEventListener("change", () => { windowChosen = true; drawPlots(); });
byId("only-changes").addEventListener("change", () => { turn = 0; });
byId("log-more").addEventListener("click", () => { logRows = Infinity; turn = 0; refresh(); });
new ResizeObserver(() => { turn = 0; drawPlots(); }).observe(byId("plots"));
start();
