// The decision log as a table; each row keeps whether its evidence is unfolded.

import { el } from "./dom.js";
import { armColour, clock } from "./format.js";

const unfolded = new Set();

/** decisions: [{id, atUnixS, what, arm, reason, detail, evidence, actor}], newest first. */
export function drawLog(body, decisions) {
  body.replaceChildren(...decisions.map((decision) => el("tr", {},
    el("td", {}, el("time", { datetime: new Date(decision.atUnixS * 1000).toISOString(), text: clock(decision.atUnixS) })),
    el("td", {}, el("span", { class: "chip", arm: armColour(decision.arm), text: decision.what })),
    el("td", {}, el("code", { class: "reason", text: decision.reason }), el("span", { text: ` ${decision.detail}` }), numbers(decision)))));
}

function numbers(decision) {
  const evidence = decision.evidence ?? {};
  if (!Object.keys(evidence).length) return null;
  const details = el("details", { open: unfolded.has(decision.id) },
    el("summary", { text: "numbers" }), el("pre", { text: JSON.stringify(evidence, null, 2) }));
  details.addEventListener("toggle", () => (details.open ? unfolded.add(decision.id) : unfolded.delete(decision.id)));
  return details;
}
