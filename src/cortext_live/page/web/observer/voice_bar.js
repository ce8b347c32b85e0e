// What the voice does with the sentence, beside it: what waits can be cancelled, what sounds stopped.

const $ = (id) => document.getElementById(id);

const offer = (button, is) => {
  button.hidden = !is;
  button.disabled = !is; // its key does nothing then
};

export class VoiceBar {
  constructor(voice) {
    this.voice = voice;
    $("voice-go").addEventListener("click", () => voice.go());
    $("voice-stop").addEventListener("click", () => (this.waits ? voice.cancel() : voice.stop()));
    $("voice-repeat").addEventListener("click", () => voice.repeat());
    addEventListener("keydown", ({ key }) => key === "Escape" && this.waits && voice.cancel());
    voice.onchange = (state) => this.show(state);
    this.show(voice.state);
  }

  show({ kind, text, left_s, waiting }) {
    this.waits = waiting !== null;
    $("voice-bar").hidden = kind === "off";
    $("voice-state").textContent = text;
    $("voice-state").dataset.kind = kind;
    $("voice-state").style.setProperty("--left", left_s === null ? 0 : (left_s / this.voice.pause_s).toFixed(3));
    offer($("voice-go"), this.waits);
    offer($("voice-stop"), this.waits || kind === "speaking");
    $("voice-stop-text").textContent = this.waits ? "Cancel" : "Stop";
    $("voice-repeat").disabled = kind === "off" || !this.voice.last;
  }
}
