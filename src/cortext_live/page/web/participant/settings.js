// The settings of the participant's view, all made of buttons, which keys, fingers and dwelling press alike.

import { element } from "../dom.js";
import { remembered } from "../preferences.js";

const $ = (id) => document.getElementById(id);

function row(box, label, ...controls) {
  const name = element("span", { textContent: label, id: `setting-${label.toLowerCase().replaceAll(" ", "-")}` });
  const group = element("div", { className: "together" }, ...controls);
  group.setAttribute("role", "group");
  group.setAttribute("aria-labelledby", name.id);
  box.append(element("div", { className: "row" }, name, group));
}

// One of a few: a button for each. options: [value, text]
function oneOf(box, label, setting, options, changed) {
  const buttons = options.map(([value, text]) => {
    const button = element("button", { type: "button", textContent: text });
    button.addEventListener("click", () => {
      setting.set(value);
      apply();
      changed();
    });
    return button;
  });
  const apply = () => buttons.forEach((button, i) => (button.ariaPressed = String(options[i][0] === setting.get())));
  apply();
  row(box, label, ...buttons);
}

// One of many in their order: less and more.
function steps(box, label, setting, values, text, changed) {
  const shown = element("output", { className: "value" });
  shown.setAttribute("aria-live", "polite");
  const [less, more] = [[-1, "\u2212", "less"], [1, "+", "more"]].map(([by, sign, word]) => {
    const button = element("button", { type: "button", textContent: sign, ariaLabel: `${label}: ${word}` });
    button.addEventListener("click", () => {
      setting.set(values[at() + by] ?? setting.get());
      apply();
      changed();
    });
    return button;
  });
  const at = () => Math.max(0, values.indexOf(setting.get()));
  const apply = () => {
    shown.textContent = text(values[at()]);
    less.disabled = at() === 0;
    more.disabled = at() === values.length - 1;
  };
  apply();
  row(box, label, less, shown, more);
}

const SIZES = [["none", "None"], ["small", "Small"], ["medium", "Medium"], ["large", "Large"]];
// Sentences that are less probably right than this, but not less than LEAST, have alternatives: below that hardly any list
// has the right one (docs/measured/alternatives.md).
export const LEAST = 0.1;
const BELOW = ["0", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "0.95"];
const WAITS = ["2", "4", "6", "8", "10", "15", "20", "30", "0"];
const DWELL = ["0", "0.4", "0.5", "0.6", "0.8", "1", "1.2", "1.5", "2", "2.5", "3"];

export class Settings {
  // changed() is called after each change
  constructor(changed) {
    const talk = remembered("talk", "medium"), rate = remembered("rate", "on");
    const below = remembered("alternatives.below", "0.6"), most = remembered("alternatives.most", "4");
    const wait = remembered("alternatives.wait", "8"), dwell = remembered("dwell", "0");
    const values = { talk, rate, below, most, wait, dwell };
    for (const [name, setting] of Object.entries(values))
      Object.defineProperty(this, name, { get: () => (isNaN(setting.get()) ? setting.get() : Number(setting.get())) });
    oneOf($("reading"), "Conversation", talk, SIZES, changed);
    oneOf($("choosing"), "Buttons Right and Wrong", rate, [["on", "Shown"], ["off", "Hidden"]], changed);
    steps($("choosing"), "Ask if less sure than", below, BELOW, (it) => (it === "0" ? "never" : `${Math.round(100 * it)}\u202f%`), changed);
    oneOf($("choosing"), "How many sentences", most, [["2", "2"], ["3", "3"], ["4", "4"]], changed);
    steps($("choosing"), "Time to choose", wait, WAITS, (it) => (it === "0" ? "no end" : `${it}\u202fs`), changed);
    steps($("dwelling"), "Press after", dwell, DWELL, (it) => (it === "0" ? "off" : `${it}\u202fs`), changed);
  }
}

export const KEYS = [
  ["1", "choose the first sentence, 2 to 4 the others"], ["N", "none of these"], ["A", "other sentences"],
  ["R", "right"], ["W", "wrong"], ["Y", "say it, or again"], ["X", "stop the voice"],
  ["S", "settings"], ["F", "full screen"], ["L", "colours"], ["Esc", "close"],
];
