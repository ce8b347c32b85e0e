// The voices of the browser (the Web Speech API), and what browsers get wrong about them.

const SETTLE_MS = 60; // Chrome drops what is spoken right after a cancel
const SILENT_MS = 5000; // without a sign of life for so long, a queue is stuck
const REMOTE_MS = 10_000; // Chrome ends a voice from the network after 15 s unless it is nudged

const tag = (lang) => lang.toLowerCase().replace("_", "-"); // Android writes en_US
const primary = (lang) => tag(lang).split("-")[0];

export class BrowserVoice {
  // events: began(), ended(), failed(what), blocked(text): the browser wants a key or a touch first; voices(): the list has changed.
  constructor(events) {
    this.events = events;
    this.synth = globalThis.speechSynthesis;
    this.active = []; // in order; held here, or Chrome collects them as garbage and never says that they have ended
    this.delayed = [];
    this.cancelled_ms = -Infinity;
    this.list(); // asking makes Chrome load its voices
    this.synth?.addEventListener?.("voiceschanged", () => this.events.voices());
  }

  get exists() {
    return Boolean(this.synth && globalThis.SpeechSynthesisUtterance);
  }

  list() {
    return this.exists ? this.synth.getVoices() : [];
  }

  // The voice that was chosen, or else the best for the language among those that send no text to other computers.
  choose(uri, lang) {
    const all = this.list(), wanted = lang || navigator.language || "en";
    const chosen = uri && all.find(({ voiceURI }) => voiceURI === uri);
    if (chosen) return chosen;
    const fit = ({ lang: its }) => (tag(its) === tag(wanted) ? 3 : primary(its) !== primary(wanted) ? 0 : tag(its) === tag(navigator.language) ? 2 : 1);
    const own = all.filter((it) => it.localService && fit(it));
    return own.sort((a, b) => fit(b) - fit(a) || Number(b.default) - Number(a.default))[0] ?? null;
  }

  speak(text, settings) {
    const { lang, voice, volume, rate, pitch } = settings, found = this.choose(voice, lang);
    if (!this.exists) return this.events.failed("This browser cannot speak.");
    if (!found && this.list().length)
      return this.events.failed(`This browser has no voice of its own for ${lang || "this language"}. Choose one under Voice, or start the server with --voice.`);
    const made = new SpeechSynthesisUtterance(text);
    if (found) made.voice = found;
    Object.assign(made, { lang: found?.lang ?? lang, volume, rate, pitch });
    made.onstart = () => {
      this.touch();
      made.started = true;
      this.events.began();
    };
    made.onboundary = () => this.touch();
    made.onend = () => this.finish(made);
    made.onerror = ({ error }) => {
      if (!this.finish(made) || error === "canceled" || error === "interrupted") return;
      if (error === "not-allowed") this.events.blocked(text);
      else this.events.failed(`The browser\u2019s voice failed (${error}).${this.list().length ? "" : " This computer may have no voice."}`);
    };
    const wait_ms = this.cancelled_ms + SETTLE_MS - performance.now();
    if (wait_ms > 0 || this.delayed.length) {
      this.delayed.push(made);
      if (this.delayed.length === 1) this.later = setTimeout(() => this.flush(), wait_ms);
    } else this.start(made);
  }

  stop() {
    clearTimeout(this.later);
    const busy = this.active.length || this.synth?.speaking || this.synth?.pending;
    this.delayed = [];
    this.active = [];
    this.watch();
    if (!busy) return;
    this.synth.cancel();
    this.cancelled_ms = performance.now();
    this.events.ended();
  }

  get busy() {
    return this.active.length + this.delayed.length > 0;
  }

  flush() {
    const all = this.delayed;
    this.delayed = [];
    all.forEach((it) => this.start(it));
  }

  start(made) {
    if (!this.active.length) this.touch();
    this.active.push(made);
    if (this.synth.paused) this.synth.resume(); // another page may have left it so
    this.synth.speak(made);
    this.watch();
  }

  finish(made) {
    if (!this.active.includes(made)) return false; // it was stopped
    this.active = this.active.filter((it) => it !== made);
    this.touch();
    this.watch();
    this.events.ended();
    return true;
  }

  touch() {
    this.alive_ms = this.nudged_ms = performance.now();
  }

  watch() {
    clearInterval(this.timer);
    if (this.active.length) this.timer = setInterval(() => this.check(), 500);
  }

  check() {
    const now_ms = performance.now(), [first] = this.active;
    if (first.started) {
      if (first.voice && !first.voice.localService && now_ms - this.nudged_ms > REMOTE_MS) {
        this.synth.pause();
        this.synth.resume();
        this.nudged_ms = now_ms;
      }
      // Some voices never say that they have ended.
      if (now_ms - this.alive_ms > 3 * SILENT_MS + (200 * first.text.length) / first.rate) this.finish(first);
    } else if (now_ms - this.alive_ms > SILENT_MS) this.restart(first);
  }

  // A queue that is stuck goes on after a cancel; one that is silent again has no voice.
  restart(first) {
    const all = this.active;
    this.stop();
    if (first.again) return this.events.failed("The browser\u2019s voice makes no sound: this computer may have no voice.");
    all.forEach((it) => (it.again = true));
    this.delayed = all;
    this.later = setTimeout(() => this.flush(), SETTLE_MS);
  }
}
