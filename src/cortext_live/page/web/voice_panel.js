// The settings of a Voice as controls. A view links voice.css, gives an element, and calls show() when the server has greeted.

import { element } from "./dom.js";
import { MODES } from "./voice.js";

const WHEN = { "at once": "at once", pause: "after a pause to cancel", key: "on a key or a touch" };
const SAMPLE = "This is how sentences will be spoken.";
const percent = (value) => `${Math.round(100 * value)}\u2009%`;

export class VoicePanel {
  constructor(box, voice) {
    this.voice = voice;
    this.rows = {};
    this.note = element("p", { className: "note" });
    box.classList.add("voice");
    box.append(
      this.check("on", "Speak each sentence"),
      this.select("source", "Voice of"), this.select("browserVoice", "Voice"), this.select("mode", "When"),
      this.range("pause_s", "Pause", 0.5, 10, 0.5, (value) => `${value} s`),
      this.check("wordByWord", "Word by word, while a sentence forms"),
      this.range("volume", "Volume", 0, 1, 0.05, percent),
      this.range("rate", "Speed", 0.5, 2, 0.05, percent),
      this.range("pitch", "Pitch", 0, 2, 0.05, percent),
      this.note,
      element("p", { className: "buttons" },
        this.button("Try it", () => voice.sample(SAMPLE)), this.button("Repeat the last", () => voice.repeat()), this.button("Stop", () => voice.stop())),
    );
    this.rows.on.control.autofocus = true;
    voice.onvoices = () => this.show();
    this.show();
  }

  button(text, press) {
    const made = element("button", { type: "button", textContent: text });
    made.addEventListener("click", press);
    return made;
  }

  // A label with its control; what is chosen is in force at once.
  field(name, text, control, value, ...more) {
    control.dataset.voice = name;
    control.addEventListener("input", () => {
      this.voice[name] = value();
      this.show();
    });
    return (this.rows[name] = { control, row: element("label", {}, text, ...more, control) }).row;
  }

  check(name, text) {
    const box = element("input", { type: "checkbox" }), row = this.field(name, "", box, () => box.checked);
    row.className = "check";
    row.append(text);
    return row;
  }

  select(name, text) {
    const list = element("select");
    return this.field(name, text, list, () => list.value);
  }

  range(name, text, min, max, step, shown) {
    const slider = element("input", { type: "range", min, max, step }), value = element("span", { className: "value" });
    value.ariaHidden = "true"; // the slider says it
    const row = this.field(name, text, slider, () => slider.value, value);
    this.rows[name].shown = (now) => (slider.ariaValueText = value.textContent = shown(now));
    return row;
  }

  choices(name, pairs, chosen) {
    const { control } = this.rows[name], wanted = JSON.stringify(pairs);
    if (control.dataset.choices !== wanted) control.replaceChildren(...pairs.map(([value, text]) => new Option(text, value)));
    control.dataset.choices = wanted;
    control.value = pairs.some(([value]) => value === chosen) ? chosen : pairs[0][0];
  }

  // Fills in what is in force, and hides what the voice does not have.
  show() {
    const { voice, rows } = this, { hello, usesServer } = voice;
    const lang = hello?.language.lang || "en";
    const near = (it) => Number(it.lang.toLowerCase().startsWith(lang.slice(0, 2)));
    const all = voice.browser.list().sort((a, b) => near(b) - near(a) || Number(b.localService) - Number(a.localService));
    const named = all.map(({ voiceURI, name, lang: its, localService }) => [voiceURI, `${name} (${its})${localService ? "" : ", sends text over the internet"}`]);
    this.choices("source", voice.serverVoice ? [["server", `the server (${voice.serverVoice})`], ["browser", "this browser"]] : [["browser", "this browser"]], usesServer ? "server" : "browser");
    this.choices("browserVoice", [["", "best for the language"], ...named], voice.browserVoice);
    this.choices("mode", MODES.map((mode) => [mode, WHEN[mode]]), voice.mode);
    for (const name of ["on", "wordByWord"]) rows[name].control.checked = voice[name];
    for (const name of ["pause_s", "volume", "rate", "pitch"]) {
      rows[name].control.value = voice[name];
      rows[name].shown(voice[name]);
    }
    const takes = usesServer ? hello.voice_takes ?? [] : ["rate", "pitch"];
    rows.source.row.hidden = !voice.serverVoice || !voice.browser.exists;
    rows.browserVoice.row.hidden = usesServer;
    rows.pause_s.row.hidden = voice.mode !== "pause";
    rows.wordByWord.control.disabled = voice.mode !== "at once";
    for (const name of ["rate", "pitch"]) rows[name].control.disabled = !takes.includes(name);
    this.note.textContent = this.remark(takes, named);
    this.note.hidden = !this.note.textContent;
  }

  remark(takes, named) {
    const { voice } = this, lacks = [["rate", "speed"], ["pitch", "pitch"]].filter(([name]) => !takes.includes(name)).map(([, text]) => text);
    const remote = voice.browser.list().find(({ voiceURI, localService }) => voiceURI === voice.browserVoice && !localService);
    return [
      voice.usesServer || named.length ? "" : "This browser knows no voice, and may stay silent.",
      !voice.usesServer && remote ? "The chosen voice sends each sentence to its maker over the internet." : "",
      lacks.length ? `This voice always has the same ${lacks.join(" and ")}.` : "",
      voice.mode === "at once" ? "" : "Word by word needs sentences to be spoken at once.",
    ].filter(Boolean).join(" ");
  }
}
