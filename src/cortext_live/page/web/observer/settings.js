// What an observer chooses: the trial, the search's options, hotwords; and the page's single keys.

import { byAlphabet, said } from "../language.js";

const $ = (id) => document.getElementById(id);

const OPTIONS = [
  // name, label, step, least
  ["lm_weight", "Language model weight", 0.05, 0],
  ["acoustic_scale", "Acoustic model weight", 0.05, 0.05],
  ["blank_penalty", "Blank penalty", 1, 1],
  ["word_score", "Bonus for each word", 0.1, null],
  ["sil_cost", "Cost of no pause between words", 0.1, null],
  ["beam", "Beam width", 1, 0],
  ["max_active", "Most hypotheses", 50, 1],
  ["nbest", "Sentences in the list", 1, 1],
];
const WEIGHT = ["llm.weight", "Large model weight", 0.05, 0];
const valueOf = (options, name) => name.split(".").reduce((found, part) => found[part], options);

const option = (value, text) => new Option(text, String(value));

// Fills a select only where its choices change, so that one that is open stays open.
function choices(select, pairs) {
  const wanted = JSON.stringify(pairs);
  if (select.dataset.choices === wanted) return;
  const before = select.value;
  select.dataset.choices = wanted;
  select.replaceChildren(...pairs.map(([value, text]) => option(value, text)));
  if (pairs.some(([value]) => String(value) === before)) select.value = before;
}

export class Source {
  // Sessions and trials to choose from; a feed has none.
  show(source) {
    this.trials = source.trials ?? [];
    const sessions = source.sessions ?? [...new Set(this.trials.map(({ session }) => session))];
    $("source").hidden = !sessions.length;
    $("feed").hidden = source.kind !== "feed";
    choices($("session"), sessions.map((session) => [session, session]));
    $("session").onchange = () => this.showTrials();
    this.showTrials();
  }

  showTrials() {
    const here = this.trials.filter(({ session }) => session === $("session").value);
    choices($("trial"), [
      ["", here.length ? `all ${here.length} trials` : "all trials"],
      ...here.map(({ id, block, trial }) => [id, `block ${block}, trial ${trial}`]),
    ]);
  }

  choose(session) {
    $("session").value = session;
    this.showTrials();
  }

  move(by) {
    const select = $("trial");
    const n = select.options.length;
    if (n > 1) select.selectedIndex = Math.min(n - 1, Math.max(1, select.selectedIndex + by));
  }

  // What POST start is asked for: a trial, a session from its beginning, or (nothing) to go on with the session.
  choice({ session, state }) {
    const chosen = this.trials.find(({ id }) => String(id) === $("trial").value);
    if (chosen) return { trial: chosen.id };
    const wanted = $("session").value;
    return wanted && (wanted !== session || state === "ended") ? { session: wanted } : {};
  }
}

export class Options {
  constructor(ask) {
    this.ask = ask; // ask(action, body) -> whether the server did it
    $("options-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply(this.changed());
    });
    $("options-reset").addEventListener("click", () => this.apply(this.first));
  }

  // day: the one chosen for all trials, or null; llm: name of the large model, or null; context: what it reads first.
  show({ options, day_chosen: day, context, days }, { llm, separator }) {
    const usable = OPTIONS.filter(([name]) => name !== "sil_cost" || separator !== null);
    const names = [...(llm ? [WEIGHT] : []), ...usable];
    this.first ??= Object.fromEntries(names.map(([name]) => [name, valueOf(options, name)]));
    [this.current, this.day, this.context] = [options, day, context];
    if (!$("options-fields").children.length) this.build(names, llm);
    if (String(days) !== String(this.days)) this.list(days); // a model may know other days than the one before
    for (const input of $("options-fields").querySelectorAll("input[name]"))
      if (input !== document.activeElement) input.value = valueOf(options, input.name);
    if ($("day") !== document.activeElement) $("day").value = day ?? "";
    if (llm && $("context") !== document.activeElement) $("context").value = context ?? "";
  }

  list(days) {
    this.days = days;
    $("day").replaceChildren(option("", "each trial's own"), ...days.map((name) => option(name, name)));
  }

  build(names, llm) {
    const label = (text, field) => {
      const made = document.createElement("label");
      made.append(text, field);
      return made;
    };
    const fields = names.map(([name, text, step, least]) => {
      const input = Object.assign(document.createElement("input"), { name, type: "number", required: true, step: "any" });
      input.dataset.step = step;
      if (least !== null) input.min = least;
      return Object.assign(label(text, input), { title: `decoder option ${name}` });
    });
    const day = Object.assign(document.createElement("select"), { id: "day", autofocus: true });
    $("options-fields").replaceChildren(label("Day layer of", day), ...fields);
    if (!llm) return;
    const context = Object.assign(document.createElement("input"), { id: "context", autocomplete: "off" });
    said(context);
    context.title = `${llm} reads it before the sentence`;
    $("options-fields").append(label("What was said before", context));
  }

  changed() {
    const inputs = [...$("options-fields").querySelectorAll("input[name]")];
    return Object.fromEntries(inputs.map(({ name, value }) => [name, Number(value)]).filter(([name, value]) => value !== valueOf(this.current, name)));
  }

  async apply(changes) {
    const day = $("day").value || null;
    const context = $("context")?.value ?? this.context;
    const { [WEIGHT[0]]: weight, ...others } = changes;
    if (weight !== undefined) others.llm = { weight };
    let done = day === this.day || (await this.ask("day", { session: day }));
    if (done && context !== this.context) done = await this.ask("context", { text: context });
    if (done && Object.keys(others).length) done = await this.ask("options", others);
    if (done) $("options-panel").hidePopover();
  }
}

export class Hotwords {
  constructor(ask) {
    this.ask = ask;
    $("hotword-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      const input = $("hotword"), word = input.value.trim();
      input.value = "";
      input.focus();
      if (word && !(await ask("hotwords", { [word]: Number($("bonus").value) }))) input.value ||= word;
    });
  }

  // Words as they were typed: `spelling` has those with capitals.
  show(hotwords, spelling = {}) {
    const entries = Object.entries(hotwords).map(([word, bonus]) => [spelling[word] ?? word, bonus]).sort(([a], [b]) => byAlphabet(a, b));
    $("hotwords-count").textContent = entries.length || "";
    const shown = JSON.stringify(entries);
    if (shown === this.shown) return;
    this.shown = shown;
    $("hotword-list").replaceChildren(...entries.map(([word, bonus]) => this.row(word, bonus)));
  }

  row(word, bonus) {
    const row = document.createElement("li"), name = document.createElement("b"), value = document.createElement("span");
    const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "Remove" });
    said(name).textContent = word;
    value.textContent = (bonus > 0 ? "+" : "\u2212") + Math.abs(bonus);
    remove.setAttribute("aria-label", `Remove ${word}`);
    remove.addEventListener("click", () => {
      $("hotword").focus(); // this row will go
      this.ask("hotwords", { [word]: null });
    });
    row.append(name, value, remove);
    return row;
  }
}

export const KEYS = [
  ["S", "start or stop"], ["D", "choose the day"], ["T", "choose the trial"], ["P", "previous trial"], ["N", "next trial"],
  ["1", "rate: right"], ["2", "rate: mostly right"], ["3", "rate: wrong"], ["E", "edit the sentence"],
  ["V", "voice"], ["A", "speak now"], ["X", "stop or cancel the voice"], ["R", "repeat the sentence"],
  ["C", "conversation"], ["F", "drift"], ["G", "other devices"], ["H", "hotwords"], ["O", "options"], ["L", "colours"], ["?", "this list"], ["Esc", "close or cancel"],
];
