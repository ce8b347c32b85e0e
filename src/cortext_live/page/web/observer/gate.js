// The threshold of the idle gate: a slider over the thresholds that were measured, and what each is worth.

const $ = (id) => document.getElementById(id);
const number = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toString());
// Six decimals tell all measured thresholds apart; 0 and 1 are none.
const short = (threshold) => {
  const rounded = Number(threshold.toFixed(6));
  return String(rounded > 0 && rounded < 1 ? rounded : threshold);
};
const percent = (share) => `${(100 * share).toFixed(1)}\u2009%`;

export class Gate {
  // ask(action, body) -> whether the server did it
  constructor(ask) {
    this.ask = ask;
    this.held = false; // while a person moves it, the server's messages leave it where it is
    $("gate-threshold").addEventListener("input", () => {
      this.held = true;
      this.tell(this.measured[$("gate-threshold").valueAsNumber]);
    });
    $("gate-threshold").addEventListener("change", async () => {
      const { threshold } = this.measured[$("gate-threshold").valueAsNumber];
      await this.ask("gate", { threshold });
      this.held = false;
      this.show(this.state, { gate: this.measured });
    });
  }

  // gate: figures by threshold, rising, or null without a gate; gate_threshold: the one in force, which may lie between them.
  show(state, { gate }) {
    this.state = state;
    this.measured = gate;
    $("gate").hidden = !gate?.length;
    if ($("gate").hidden || this.held) return;
    const at = gate.findLastIndex(({ threshold }) => threshold <= state.gate_threshold);
    $("gate-threshold").max = gate.length - 1;
    $("gate-threshold").value = Math.max(at, 0);
    const above = gate.find(({ threshold }) => threshold >= state.gate_threshold) ?? null;
    this.tell(gate[at], above, state.gate_threshold);
  }

  // Between two measured thresholds each figure is the worse one: false sentences fall with the threshold, missed beginnings rise.
  tell(below, above = below, inForce = below.threshold) {
    const { false_per_hour: wrong, false_high: most } = below ?? {};
    const { missed, missed_high } = above ?? {};
    $("gate-value").textContent = short(inForce);
    $("gate-false").textContent = wrong === null || wrong === undefined ? "not measured" : `${number(wrong)} an hour, at most ${number(most)}`;
    $("gate-missed").textContent = missed === undefined ? "not measured" : `${percent(missed)}, at most ${percent(missed_high)}`;
    const of = [[below, "False sentences"], [above, "Missed beginnings"]].filter(([each]) => each && each.threshold !== inForce);
    $("gate-of").textContent = of.map(([{ threshold }, name]) => `${name} at ${short(threshold)}.`).join(" ");
    const text = `${short(inForce)}; false sentences: ${$("gate-false").textContent}; missed beginnings: ${$("gate-missed").textContent}`;
    $("gate-threshold").setAttribute("aria-valuetext", text);
  }
}
