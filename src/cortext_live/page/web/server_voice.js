// The server's voice: its sound is played while it arrives.

const LEAD_S = 0.04; // sound that is scheduled later than it should begin clicks
const PIECE = 2048; // samples of a piece, at least

export class ServerVoice {
  // events: began(), ended(), failed(what), blocked(text), as the browser's.
  constructor(link, events) {
    this.link = link;
    this.events = events;
    this.context = null;
    this.sources = new Set();
    this.clear();
  }

  clear() {
    this.abort = new AbortController();
    this.turn = Promise.resolve(); // one after the other
    this.waiting = 0; // sentences that have not been received wholly
    this.until_s = 0; // when what is scheduled has been played
  }

  get busy() {
    return this.waiting + this.sources.size > 0;
  }

  speak(text, settings) {
    const { signal } = this.abort;
    this.waiting += 1;
    this.turn = this.turn.then(() => this.receive(text, settings, signal)).catch((error) => {
      if (!signal.aborted) this.events.failed(error.message);
    }).finally(() => {
      if (signal.aborted) return;
      this.waiting -= 1;
      if (!this.busy) this.events.ended();
    });
  }

  stop() {
    const busy = this.busy;
    this.abort.abort();
    for (const source of this.sources) {
      source.onended = null;
      source.stop();
    }
    this.sources.clear();
    this.clear();
    if (busy) this.events.ended();
  }

  async receive(text, { volume, rate, pitch }, signal) {
    if (signal.aborted) return;
    const asked = this.link.stream("speak", { text, rate, pitch }, signal);
    asked.catch(() => {}); // it is awaited below
    if (!(await this.opened())) {
      this.abort.abort();
      this.clear();
      return this.events.blocked(text);
    }
    const gain = this.context.createGain();
    gain.gain.value = volume;
    gain.connect(this.context.destination);
    const reader = (await asked).body.getReader(), wave = new Wave();
    for (;;) {
      const { done, value } = await reader.read();
      if (signal.aborted) return;
      const samples = wave.add(value, done);
      if (samples.length) this.schedule(samples, wave.rate, gain);
      if (done) return;
    }
  }

  // A browser makes no sound before a key or a touch.
  async opened() {
    this.context ??= new AudioContext();
    if (this.context.state !== "running")
      await Promise.race([this.context.resume(), new Promise((done) => setTimeout(done, 250))]);
    return this.context.state === "running";
  }

  schedule(samples, rate, gain) {
    const buffer = this.context.createBuffer(1, samples.length, rate), source = this.context.createBufferSource();
    buffer.copyToChannel(samples, 0);
    source.buffer = buffer;
    source.connect(gain);
    const at_s = Math.max(this.until_s, this.context.currentTime + LEAD_S);
    source.start(at_s);
    this.until_s = at_s + buffer.duration;
    if (!this.sources.size) this.events.began();
    this.sources.add(source);
    source.onended = () => {
      this.sources.delete(source);
      if (!this.busy) this.events.ended();
    };
  }
}

// A WAV file of 16-bit samples that arrives in pieces.
class Wave {
  rest = new Uint8Array();
  rate = 0;

  add(bytes, done) {
    if (bytes) {
      const all = new Uint8Array(this.rest.length + bytes.length);
      all.set(this.rest);
      all.set(bytes, this.rest.length);
      this.rest = all;
    }
    if (!this.rate) {
      if (this.rest.length < 44) return new Float32Array();
      this.rate = new DataView(this.rest.buffer).getUint32(24, true);
      this.rest = this.rest.slice(44);
    }
    const n = this.rest.length >> 1;
    if (n < PIECE && !done) return new Float32Array();
    const view = new DataView(this.rest.buffer, this.rest.byteOffset);
    const samples = Float32Array.from({ length: n }, (_, i) => view.getInt16(2 * i, true) / 32768);
    this.rest = this.rest.slice(2 * n);
    return samples;
  }
}
