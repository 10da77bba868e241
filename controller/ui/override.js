// The override form: what, for how long, why; behind the token.

import { call, token } from "./api.js";
import { byId, el } from "./dom.js";

export class OverrideForm {
  /** changed: called after an override was given or ended. */
  constructor(changed) {
    this.changed = changed;
    this.form = byId("override-form");
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.#give(); });
    this.form.addEventListener("change", () => this.#fit());
    byId("end-override").addEventListener("click", () => this.#send("DELETE", undefined, "The override has ended."));
    byId("token").value = token.get();
    byId("token").addEventListener("change", () => { token.set(byId("token").value.trim()); this.changed(); });
    this.#fit();
  }

  /** order: the override in force on this pod or null; depths: built depths above 0. */
  show({ order, depths }) {
    byId("end-override").hidden = !order;
    const select = byId("depth");
    const wanted = ["deepest", ...depths.map(String)].join();
    if (select.dataset.depths === wanted) return;
    select.dataset.depths = wanted;
    select.replaceChildren(el("option", { value: "", text: "deepest built" }), ...depths.map((depth) => el("option", { value: depth, text: String(depth) })));
  }

  #fit() {
    const { mode } = Object.fromEntries(new FormData(this.form));
    byId("depth-field").hidden = mode !== "on";
  }

  #give() {
    const { mode, depth, ttl, reason } = Object.fromEntries(new FormData(this.form));
    const body = { mode, reason: reason.trim(), actor: "status page" };
    if (mode === "on" && depth) body.depth = Number(depth);
    if (ttl) body.ttl_s = Number(ttl);
    this.#send("PUT", body, `Override taken: ${mode.replaceAll("_", " ")}. Whether it is in force stands above.`);
  }

  async #send(method, body, done) {
    token.set(byId("token").value.trim());
    const buttons = this.form.querySelectorAll("button");
    buttons.forEach((button) => { button.disabled = true; });
    try {
      await call("v1/override", { method, body });
      this.#say(done, false);
      if (method === "PUT") byId("reason-input").value = "";
      await this.changed();
    } catch (error) {
      this.#say(error.message, true);
      if (error.status === 401 || error.status === 403) byId("token").focus();
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
    }
  }

  #say(text, bad) {
    const result = byId("override-result");
    result.textContent = text;
    result.classList.toggle("bad", bad);
  }
}
