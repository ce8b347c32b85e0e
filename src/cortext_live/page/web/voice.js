// Speaks sentences, by the browser's voices or the server's. A view makes one Voice and calls, for the server's messages:
//   hello -> greet(hello)    step -> words(step.stable, step.utterance)    utterance -> final(utterance)
// and shows `state` whenever onchange() is called:
//   kind: "off" | "ready" | "blocked" (wants a key or a touch) | "held" (waits for a choice among alternatives) |
//         "pausing" (left_s until it speaks; cancel(), go()) | "asking" (waits for go()) | "speaking" (stop())
//   text: one line in plain words; waiting: the sentence that waits, or null.
// Settings are properties, which this browser remembers: set one, and it is in force. voice_panel.js makes controls for them.

import { BrowserVoice } from "./browser_voice.js";
import { bare, joined, words } from "./language.js";
import { remembered } from "./preferences.js";
import { ServerVoice } from "./server_voice.js";

const TICK_MS = 100;
const TOUCH = "Press any key to turn the voice on";
export const MODES = ["at once", "pause", "key"];
export const SOURCES = ["", "browser", "server"]; // "": the server's where it has one

const yes = (first) => [first ? "yes" : "no", (it) => it === "yes", (it) => (it ? "yes" : "no")];
const number = (first, least, most) => [String(first), (it) => (Number.isFinite(Number(it)) ? Math.min(most, Math.max(least, Number(it))) : first), String];
const oneOf = (list) => [list[0], (it) => (list.includes(it) ? it : list[0]), String];
const text = ["", String, String];

export class Voice {
  // link: the Link; complain(line) shows what failed; view: "participant", whose voice is on at first, or another.
  constructor({ link, complain, view = "observer" }) {
    const settings = {
      on: yes(view === "participant"), source: oneOf(SOURCES), browserVoice: text, mode: oneOf(MODES), wordByWord: yes(false),
      pause_s: number(2, 0.5, 30), volume: number(1, 0, 1), rate: number(1, 0.5, 2), pitch: number(1, 0, 2),
    };
    for (const [name, [first, read, write]] of Object.entries(settings)) {
      const kept = remembered(name === "on" ? `voice.on.${view}` : `voice.${name}`, first);
      Object.defineProperty(this, name, { get: () => read(kept.get()), set: (value) => this.set(kept, write(value)) });
    }
    this.link = link;
    this.complain = complain;
    this.onchange = () => {};
    this.onvoices = () => {};
    this.hello = null;
    this.last = ""; // the latest sentence, for repeat()
    this.done = 0; // number of the latest utterance that was final
    this.spoken = []; // words of the utterance that is forming that were spoken one by one
    this.forming = null;
    this.held = false;
    this.waiting = null;
    this.blocked = null; // what the browser did not let us say
    this.isSpeaking = false;
    this.isAllowed = false; // it has spoken
    this.complained = "";
    const events = {
      began: () => {
        this.isSpeaking = this.isAllowed = true;
        this.complained = "";
        this.changed();
      },
      ended: () => this.changed((this.isSpeaking = this.busy)),
      failed: (what) => this.fail(what),
      blocked: (said) => this.changed((this.blocked = said)),
      voices: () => this.onvoices(),
    };
    this.browser = new BrowserVoice(events);
    this.server = new ServerVoice(link, events);
    for (const kind of ["keydown", "pointerdown"])
      addEventListener(kind, () => this.isAllowed || setTimeout(() => this.unblock()), true);
  }

  set(kept, value) {
    kept.set(value);
    this.complained = "";
    if (!this.on) this.stop();
    this.changed();
  }

  // One line for a failure, however many sentences it befalls.
  fail(what) {
    if (what !== this.complained) this.complain(what);
    this.complained = what;
    this.changed();
  }

  changed() {
    this.onchange(this.state);
  }

  get busy() {
    return this.browser.busy || this.server.busy;
  }

  // The server speaks to those who have a token.
  get serverVoice() {
    return (this.link.token && this.hello?.voice) || null;
  }

  // Its voice is used where it was chosen, or where nothing was, or where the browser has none.
  get usesServer() {
    return Boolean(this.serverVoice) && (this.source !== "browser" || !this.browser.exists);
  }

  get state() {
    const { waiting } = this;
    const is = (kind, line, left_s = null) => ({ kind, text: line, left_s, waiting });
    if (!this.on) return is("off", "The voice is off");
    if (this.blocked !== null) return is("blocked", TOUCH);
    if (waiting !== null && this.held) return is("held", "Waits for your choice");
    if (waiting !== null && this.timer) {
      const left_s = Math.max(0, (this.speaks_ms - performance.now()) / 1000);
      return is("pausing", `Speaks in ${Math.ceil(left_s)} s`, left_s);
    }
    if (waiting !== null) return is("asking", "Ready to speak");
    if (this.isSpeaking) return is("speaking", "Speaking");
    const mayNot = !this.isAllowed && navigator.userActivation?.hasBeenActive === false;
    return mayNot ? is("blocked", TOUCH) : is("ready", "The voice is on");
  }

  // The server sends its latest utterance once more to who connects: it is not spoken again.
  greet(hello) {
    this.hello = hello;
    this.done = hello.latest ?? 0;
    this.changed();
  }

  // Stable words, as they become so: each is spoken once.
  words(stable, utterance = null) {
    if (!this.on || !this.wordByWord || this.mode !== "at once" || this.held) return;
    const now = words(stable);
    const goes = utterance === this.forming && this.spoken.every((word, i) => word === now[i]);
    this.forming = utterance;
    if (!goes) this.spoken = [];
    const more = now.slice(this.spoken.length);
    this.spoken = now;
    if (more.length) this.speak(joined(more));
  }

  // A sentence: what is shown is said, but for words that were spoken already.
  final({ id, text, shown = text }) {
    const before = this.spoken, isOld = id <= this.done;
    this.last = shown || this.last;
    this.changed();
    if (isOld) return;
    this.done = id ?? this.done;
    this.spoken = [];
    if (!this.on || !shown) return;
    const all = words(shown), differs = all.findIndex((word, i) => i >= before.length || bare(word) !== bare(before[i]));
    if (!before.length) this.offer(shown);
    else if (differs >= 0) this.offer(joined(all.slice(differs)));
  }

  // Alternatives are shown: until hold(false), or until say() says the chosen one, the sentence waits.
  hold(on) {
    this.held = on;
    this.rest();
    if (!on && this.waiting !== null) this.offer(this.waiting);
    else this.changed();
  }

  // Speaks a text now, in place of the one that waits.
  say(said) {
    this.cancel();
    this.last = said;
    if (this.on && said) this.speak(said);
  }

  // Lets the voice be tried, even while it is off; the sentence to repeat stays.
  sample(said) {
    this.complained = "";
    this.stop();
    this.speak(said);
  }

  // Speaks what waits, now.
  go() {
    const said = this.waiting;
    this.cancel();
    if (said !== null && this.on) this.speak(said);
  }

  // What waits is not spoken.
  cancel() {
    this.rest();
    this.waiting = null;
    this.changed();
  }

  // No more sound, and nothing that waits for it.
  stop() {
    this.blocked = null;
    this.browser.stop();
    this.server.stop();
    this.cancel();
  }

  // The sentence was deleted: it is neither spoken nor repeated.
  forget() {
    this.stop();
    this.last = "";
    this.changed();
  }

  repeat() {
    this.stop();
    this.say(this.last);
  }

  offer(said) {
    if (this.timer) this.go(); // the sentence before could have been cancelled until now
    this.rest();
    this.waiting = null;
    if (!this.held && this.mode === "at once") return this.speak(said);
    this.waiting = said;
    if (!this.held && this.mode === "pause") {
      this.speaks_ms = performance.now() + 1000 * this.pause_s;
      this.timer = setInterval(() => (performance.now() < this.speaks_ms ? this.changed() : this.go()), TICK_MS);
    }
    this.changed();
  }

  rest() {
    clearInterval(this.timer);
    this.timer = null;
  }

  speak(said) {
    const { volume, rate, pitch, browserVoice: voice } = this, lang = this.hello?.language.lang ?? "";
    (this.usesServer ? this.server : this.browser).speak(said, { lang, voice, volume, rate, pitch });
    this.changed();
  }

  // A key or a touch allows sound.
  unblock() {
    if (this.on && this.usesServer) this.server.opened(); // which takes a moment
    const said = this.blocked;
    this.blocked = null;
    if (said !== null && this.on) this.speak(said);
    else this.changed();
  }
}
