// From what the sidecar's API says to what the page shows. No DOM in here.

import { armColour, armName, clock, duration } from "./format.js";

/** Conditions under which nothing is controlled, or something is broken; the others are notices. */
const BAD = new Set(["engine_unreachable", "unauthorized", "no_plugin", "speculation_off", "not_controllable", "wrong_version",
  "not_sglang", "inert", "ranks_disagree", "hook_errors", "plan_rejected", "engine_crash_loop", "policy_error", "lease_lost", "orders_unread"]);

/** States of the link in which nothing can be said about what the engine follows. */
const SILENT = new Set(["unreachable", "unauthorized", "not_sglang"]);

const spaced = (name) => name.replaceAll("_", " ");
const words = (name) => spaced(name).replace(/^./, (letter) => letter.toUpperCase());

/** During a probe of a few steps, what they interrupt; else nothing. */
function planned(depth, batchSize) {
  if (!depth?.probing) return null;
  const row = depth.in_force?.findLast((each) => each.min_batch_size <= batchSize);
  return row ? toArm(row) : null;
}

/** The first glance: {title, colour, arm}. */
export function glance(status) {
  const inUse = planned(status.depth, status.load?.batch_size) ?? status.depth?.in_use ?? null;
  if (!status.engine) return { title: "Starting", colour: "var(--off)", arm: null };
  if (status.engine.link !== "ready") return { title: "Not in control", colour: "var(--bad-ink)", arm: null };
  if (status.lease.state === "foreign") return { title: "Another lease holder is in control", colour: "var(--bad-ink)", arm: null };
  if (status.dry_run) return { title: "Dry run: SGLang decides", colour: "var(--native)", arm: null };
  if (status.override && status.unconfirmed) return { title: `Ordered, not confirmed: ${spaced(status.mode)}`, colour: "var(--bad-ink)", arm: null };
  if (!status.depth.wanted) return { title: "SGLang decides", colour: "var(--native)", arm: null };
  if (!inUse) return { title: "Governed, not yet seen at work", colour: "var(--off)", arm: null };
  const title = inUse.depth > 0 ? `Speculating at depth ${inUse.depth}` : "Speculation is off";
  return { title, colour: armColour(inUse), arm: inUse };
}

/** Since when the depth in use has been above 0, or 0: {unixS, atLeast} from the history, or null. */
export function sinceWhen(samples, arm) {
  if (!arm) return null;
  const same = (sample) => sample.depth === null || (sample.depth > 0) === (arm.depth > 0);
  let first = null;
  for (let i = samples.length - 1; i >= 0 && same(samples[i]); i -= 1) first = i;
  return first === null ? null : { unixS: samples[first].t, atLeast: first === 0 };
}

/** Who has the last word: a guard over an order, an order over the policy. */
function authority(status) {
  const beneath = ordered(status);
  const { guard } = status;
  if (!guard) return beneath;
  const note = `${words(guard.because)}.${status.override ? ` ${beneath.authority}.` : ""} ${beneath.note}`;
  return { authority: `Guard: ${guard.name}`, note };
}

function ordered(status) {
  const { override, fleet_override: fleet } = status;
  if (!override) return { authority: "The policy", note: `Mode auto since ${clock(status.mode_since_unix_s)}.` };
  const who = override.actor || "someone";
  const until = ends(override);
  const name = override.limit ?? (override.mode === "on" && override.depth ? `on at depth ${override.depth}` : override.mode);
  const other = fleet && override.scope !== "fleet" ? ` It ${override.suspends ? "suspends" : "stands above"} the fleet's “${fleet.mode}”.` : "";
  const where = override.scope === "fleet" ? "Fleet override" : "Override";
  return { authority: `${where}: ${name}`, note: `By ${who} ${since(status)}, ${until}: “${override.reason}”.${other}` };
}

/** When it was given and since when it is in force; what lies between is said only where it is known. */
function since({ override }) {
  const given = clock(override.set_unix_s);
  const { resumed, gap_unix_s: gap, in_force_since_unix_s: force } = override;
  if (!resumed && !gap) return `since ${given}`;
  const before = gap ? `, not from ${clock(gap[0])} to ${clock(gap[1])}` : "";
  return `at ${given}, ${force ? `in force since ${clock(force)}` : "not in force"}${before}`;
}

function ends(override) {
  if (override.scope === "sidecar") return "until the orders can be read or one is given";
  const times = [override.expires_unix_s && clock(override.expires_unix_s), override.suspends && "the fleet's order changes or ends"].filter(Boolean);
  return `until ${times.join(" or ") || "it is ended by hand"}`;
}

function figures(status, latest, benefit) {
  const load = status.load ?? {};
  const against = (name) => benefit?.against?.[name] ?? {};
  const percent = (value) => (value === null || value === undefined ? null : `${value >= 0 ? "+" : "−"}${Math.abs(100 * value).toFixed(1)}`);
  const covered = (share) => (share === null || share === undefined || share > 0.995 ? "" : `, on ${Math.round(100 * share)} % of tokens`);
  const gain = (name, reference) => ({
    name, value: percent(against(reference).gain), unit: "%",
    note: against(reference).gain === null || against(reference).gain === undefined ? null
      : `± ${(100 * against(reference).se_gain).toFixed(1)}${covered(against(reference).share)}` });
  return [
    { name: "Batch size", value: load.batch_size },
    { name: "Waiting", value: load.queue_reqs, unit: "requests" },
    { name: "Throughput", value: latest?.tokS === null || latest?.tokS === undefined ? null : Math.round(latest.tokS), unit: "tok/s" },
    gain("Against always on", "always_on"),
    gain("Against always off", "always_off"),
    { name: "Lease left", value: status.lease?.left_s === null || status.lease?.left_s === undefined ? null : Math.round(status.lease.left_s), unit: "s" },
  ];
}

/** A turn that is late is no condition of any turn; it stands first. Its time, not its age: a warning that ticks is read out again and again. */
function warnings(status) {
  const conditions = (status.conditions ?? []).map((c) => ({ title: words(c.condition), text: `since ${clock(c.since_unix_s)}: ${c.message}`, remedy: c.remedy, bad: BAD.has(c.condition) }));
  if (!status.turn?.late) return conditions;
  const text = `what you see is of ${clock(status.turn.at_unix_s)}, no turn was done since: ${status.turn.detail}.`;
  return [{ title: "Late", text, remedy: status.type[0], bad: true }, ...conditions];
}

/** The order in one line, beside the form. */
function inForce(override) {
  if (!override) return "none in force";
  const order = `${override.scope === "fleet" ? "fleet: " : ""}${spaced(override.mode)}`;
  return `${order} is ${override.obstacle ? "kept, not in force" : override.unconfirmed ? "kept, not confirmed" : "in force"}`;
}

export function statusView(status, samples, benefit) {
  const seen = glance(status);
  const since = sinceWhen(samples, seen.arm);
  const decides = authority(status);
  const controlled = status.engine?.link === "ready";
  return {
    ...seen,
    since: status.turn?.late ? `as of ${clock(status.turn.at_unix_s)}` : !since ? "" : since.atLeast ? `for ${duration(status.turn.at_unix_s - since.unixS)} or longer`
      : `for ${duration(status.turn.at_unix_s - since.unixS)}, since ${clock(since.unixS)}`,
    reason: controlled ? status.decision?.reason ?? "" : status.engine?.link ?? "",
    why: controlled ? status.why : status.engine?.detail ?? status.headline,
    authority: decides.authority,
    authorityNote: decides.note,
    type: status.type ?? [],
    engine: [status.engine?.model, status.engine?.sglang_version && `SGLang ${status.engine.sglang_version}`].filter(Boolean).join(" · "),
    version: status.engine?.plugin_version ? `specgov ${status.engine.plugin_version}` : "specgov",
    figures: figures(status, samples.at(-1), benefit),
    warnings: warnings(status),
    override: {
      order: status.override && status.override.scope !== "fleet" ? status.override : null,
      inForce: inForce(status.override),
      depths: [...new Set((status.depth?.built ?? []).map((arm) => arm.depth).filter((depth) => depth > 0))],
    },
  };
}

export const historySample = (sample) => ({
  t: sample.at_unix_s, running: sample.running_reqs, queued: sample.queue_reqs, batch: sample.batch_size,
  depth: sample.in_use?.depth ?? null, tokS: sample.decode_tok_s, predictedTokS: sample.predicted_tok_s });

const toArm = ({ depth, gear }) => ({ depth, gear: depth > 0 ? "on" : gear ?? "warm" });

/** What is measured, or, where the policy says it, what it expects at every batch size. */
function curves(policy, benefit) {
  if (policy.curves?.length) return { source: "expected by the policy", list: policy.curves.map((curve) => ({
    arm: toArm(curve), points: curve.points.map((p) => ({ batch_size: p.batch_size, tok_s: p.tok_s, error_tok_s: p.se_tok_s })) })) };
  const byArm = new Map();
  for (const { batch_bucket: size, tok_s: tokS, se_tok_s: error, ...arm } of benefit?.measured ?? []) {
    const key = `${arm.depth} ${arm.gear}`;
    if (!byArm.has(key)) byArm.set(key, { arm: toArm(arm), points: [] });
    byArm.get(key).points.push({ batch_size: size, tok_s: tokS, error_tok_s: error });
  }
  return { source: "measured", list: [...byArm.values()].sort((a, b) => a.arm.depth - b.arm.depth) };
}

/** Adds to every point its gain over no speculation, in percent, where that is known. */
function withGain(list) {
  const off = list.filter((curve) => curve.arm.depth === 0).sort((a, b) => b.points.length - a.points.length)[0];
  const reference = new Map((off?.points ?? []).map((p) => [p.batch_size, p.tok_s]));
  return list.map((curve) => ({ arm: curve.arm, points: curve.points.map((p) => {
    const at = reference.get(p.batch_size);
    return { ...p, gain: at ? 100 * (p.tok_s / at - 1) : null, gainError: at && curve !== off ? 100 * (p.error_tok_s / at) : 0 };
  }) }));
}

/** Up to where the schedule is worth showing: twice what was seen, and past its last row. */
function largestShown(status, table, samples) {
  const seen = Math.max(4, status.load?.batch_size ?? 0, ...samples.map((sample) => sample.batch ?? 0));
  const rows = Math.max(...table.map((row) => row.min_batch_size), 1);
  return Math.min(Math.max(2 * seen, 2 * rows), Math.max(status.load?.max_running_reqs ?? 1024, 2 * rows));
}

export function scheduleView(status, policy, benefit, samples) {
  const rows = status.depth?.in_force ?? status.depth?.wanted ?? [];
  const { source, list } = curves(policy, benefit);
  const all = withGain(list);
  const largest = largestShown(status, rows, samples);
  const shown = all.map((curve) => ({ ...curve, points: curve.points.filter((p) => p.batch_size <= largest) }));
  const asGain = shown.some((curve) => curve.arm.depth > 0 && curve.points.filter((p) => p.gain !== null).length > 1);
  return {
    rows: rows.map((row) => ({ min_batch_size: row.min_batch_size, arm: toArm(row) })),
    curves: all,
    lines: shown.map((curve) => ({ arm: curve.arm, points: curve.points
      .map((p) => ({ batch_size: p.batch_size, value: asGain ? p.gain : p.tok_s, error: asGain ? p.gainError : p.error_tok_s }))
      .filter((p) => p.value !== null) })).filter((curve) => curve.points.length > 1),
    title: asGain ? `Against no speculation, %, ${source}` : `Tokens per second, ${source}`,
    batchSize: status.load?.batch_size ?? null,
    largest,
    note: SILENT.has(status.engine?.link) ? "not known: the engine does not say" : !rows.length ? "none in force: SGLang decides" : `${status.depth.in_force ? "in force" : "wanted, not in force"} · policy ${policy.name}`,
  };
}

const table = ([first, ...others]) => [armName({ depth: first.depth }), ...others.map((row) => `${armName({ depth: row.depth })} from ${row.min_batch_size}`)].join(", ");

function what(row) {
  const { body } = row;
  if (row.kind === "override") return { what: `override ${["expired", "limit"].includes(row.reason) ? `${spaced(body.mode)}: ${row.reason}` : spaced(row.reason)}`, arm: null };
  if (row.kind === "event") return { what: "event", arm: null };
  if (body.action === "release") return { what: "SGLang decides", arm: null };
  if (!body.schedule) return { what: "hold", arm: null };
  return { what: table(body.schedule), arm: toArm(body.schedule[0]) };
}

const outcome = (row) => JSON.stringify([row.kind, row.body.action, row.body.schedule]);

/** Newest first; onlyChanges leaves out waiting, and a decision that came to the same as the one before it. */
export function decisionsView(pages, onlyChanges) {
  let rows = pages.flatMap((page) => page.decisions).sort((a, b) => b.id - a.id);
  if (onlyChanges) rows = rows.filter((row) => row.reason !== "dwell");
  if (onlyChanges) rows = rows.filter((row, i) => row.kind !== "decision" || i + 1 >= rows.length || outcome(row) !== outcome(rows[i + 1]));
  return rows.map((row) => ({ id: row.id, atUnixS: row.at_unix_s, ...what(row), reason: row.reason, detail: row.body.detail ?? "", evidence: row.body.evidence }));
}
