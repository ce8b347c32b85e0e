"""Doubles of what makes sound in a browser: headless Chromium has no voices."""

from __future__ import annotations

from typing import Any

from page_browser import Watched

DOUBLES = """
window.arrived = []; // utterance messages, when their web socket had them
window.spoken = []; // what speak() was called with
window.played = []; // pieces of sound that were scheduled
window.ours = { duration_ms: 20, error: null, starts: true, voices: [
  { name: "Anna", lang: "de-DE", voiceURI: "anna", localService: true, default: false },
  { name: "Cloud", lang: "en-US", voiceURI: "cloud", localService: false, default: true },
  { name: "Sam", lang: "en-US", voiceURI: "sam", localService: true, default: false } ] };
const Socket = WebSocket;
window.WebSocket = class extends Socket {
  constructor(...where) {
    super(...where);
    window.socket = this;
    this.addEventListener("message", ({ data }) => { // before the page's own listener
      const at_ms = performance.now(), { type, id } = JSON.parse(data);
      if (type === "utterance") window.arrived.push({ id, at_ms });
    });
  }
};
window.SpeechSynthesisUtterance = class { constructor(text) { Object.assign(this, { text, volume: 1, rate: 1, pitch: 1, lang: "", voice: null }); } };
class Synthesis extends EventTarget {
  queue = []; paused = false; cancels = 0;
  get speaking() { return this.queue.length > 0; }
  get pending() { return this.queue.length > 1; }
  getVoices() { return window.ours.voices; }
  speak(it) {
    const { text, volume, rate, pitch, lang, voice } = it;
    window.spoken.push({ text, volume, rate, pitch, lang, voice: voice?.voiceURI ?? null, at_ms: performance.now() });
    this.queue.push(it);
    if (this.queue.length === 1) this.next();
  }
  next() {
    const it = this.queue[0];
    if (!it || !window.ours.starts) return;
    this.timer = setTimeout(() => {
      if (window.ours.error) return this.end(() => it.onerror?.({ error: window.ours.error }));
      it.onstart?.({});
      this.timer = setTimeout(() => this.end(() => it.onend?.({})), window.ours.duration_ms);
    });
  }
  end(tell) { this.queue.shift(); tell(); this.next(); }
  cancel() {
    this.cancels += 1;
    clearTimeout(this.timer);
    const all = this.queue.splice(0);
    setTimeout(() => all.forEach((it) => it.onerror?.({ error: "interrupted" })));
  }
  pause() { this.paused = true; }
  resume() { this.paused = false; }
}
Object.defineProperty(window, "speechSynthesis", { value: new Synthesis() });
// What tests evaluate counts as a person's touch, for the browser itself.
const activation = { hasBeenActive: false };
Object.defineProperty(navigator, "userActivation", { value: activation });
for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, () => (activation.hasBeenActive = true), true);
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (at_s) {
  const data = this.buffer.getChannelData(0);
  window.played.push({ at_s, n: data.length, rate: this.buffer.sampleRate, peak: Math.max(...data.map(Math.abs)), at_ms: performance.now() });
  return start.call(this, at_s);
};
const stop = AudioBufferSourceNode.prototype.stop;
AudioBufferSourceNode.prototype.stop = function () { window.stopped = (window.stopped ?? 0) + 1; return stop.call(this); };
"""


class Heard(Watched):
    """A page of the observers whose voice is on, and what it speaks."""

    def __init__(self, browser: Any, base: str, view: str = "observer", **settings: Any) -> None:
        super().__init__(browser, base)
        kept = {f"on.{view}": "yes"} | settings
        for name, value in kept.items():
            self.page.add_init_script(
                f"localStorage.getItem({f'cortext.voice.{name}'!r}) ??"
                f" localStorage.setItem({f'cortext.voice.{name}'!r}, {str(value)!r})"
            )
        self.page.add_init_script(DOUBLES)

    def ours(self, **changes: Any) -> None:
        """Change how the double behaves."""
        self.page.evaluate("(changes) => Object.assign(window.ours, changes)", changes)

    @property
    def spoken(self) -> list[dict[str, Any]]:
        return self.page.evaluate("() => window.spoken")

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.spoken]

    @property
    def state(self) -> str:
        return self.page.evaluate("() => document.querySelector('#voice-state').dataset.kind")

    def until(self, script: str) -> None:
        self.page.wait_for_function(f"() => {script}")

    def until_state(self, kind: str) -> None:
        self.until(f"document.querySelector('#voice-state').dataset.kind === '{kind}'")
