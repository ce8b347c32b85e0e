// The sentence: forming, decided, compared with its reference. A decided one stays until the next can be read.

import { align } from "../align.js";
import { gap, isOfCharacters, joined, said, words } from "../language.js";

const $ = (id) => document.getElementById(id);
const PARTS = ["stable", "settled", "tail"];
const SETTLED_MS = 1000; // a word that has stood for so long is shown darker, though it may still change
const STAYS_WORDS = 3; // a decided sentence stays until the next one has so many words
const SIZES = 7; // of type, see --size in the style sheet; 0 is the largest

export function wordSpan(text, mark) {
  const span = document.createElement("span");
  span.textContent = text;
  if (mark) span.classList.add(mark);
  return span;
}

// The words of a sentence in `box`, with `mark` as class of those for which `marked` is true.
export function showWords(box, texts, marked, mark) {
  box.replaceChildren(...texts.flatMap((text, i) => [i ? gap() : "", wordSpan(text, marked[i] && mark)]));
}

export class Sentence {
  constructor() {
    this.heard = [];
    new ResizeObserver(() => this.fit(0)).observe($("sentence-box"));
  }

  // Whether the sentence that was decided last is what is seen.
  get stands() {
    return this.kind === "decided";
  }

  waiting(text) {
    if (this.show(["", "", text], "waiting")) this.fit();
    this.reference("");
  }

  // What the next sentence is to be; a sentence that stands keeps its own reference.
  expect(reference) {
    this.expected = reference;
    if (!this.stands) this.reference(reference);
  }

  // The next utterance begins.
  begin(reference) {
    this.heard = [];
    this.expect(reference);
  }

  // The guess after t_ms of the utterance: words that will not change any more, and those that may. Returns whether it
  // takes the place of the sentence before it.
  forming(stable, tail, t_ms) {
    const guess = words(`${stable} ${tail}`), nStable = words(stable).length;
    const again = this.kind === "forming", before = this.heard;
    this.heard = guess.map((word, i) => (before[i]?.word === word ? before[i] : { word, since_ms: t_ms }));
    if (this.stands && this.nWords && guess.length < STAYS_WORDS) return false;
    if (this.stands) this.reference(this.expected);
    const fresh = this.heard.findIndex(({ since_ms }, i) => i >= nStable && t_ms - since_ms < SETTLED_MS);
    const end = fresh < 0 ? guess.length : fresh;
    const parts = [guess.slice(0, nStable), guess.slice(nStable, end), guess.slice(end)].map(joined);
    // type that only shrinks while words come in
    if (this.show(parts, "forming")) this.fit(again && guess.length >= before.length ? this.size : 0);
    return !again;
  }

  // Returns whether anything changed.
  show(parts, kind) {
    const shown = JSON.stringify([kind, ...parts]);
    if (shown === this.shown) return false;
    [this.shown, this.kind] = [shown, kind];
    said($("sentence"), kind !== "waiting").dataset.kind = kind;
    PARTS.forEach((id, i) => {
      const follows = parts[i] && parts.slice(i + 1).some(Boolean);
      $(id).textContent = follows ? parts[i] + gap() : parts[i];
    });
    $("corrected-line").hidden = true;
    return true;
  }

  reference(text) {
    $("reference-line").hidden = !text;
    $("reference").textContent = text ?? "";
    $("verdict").textContent = "";
  }

  // The decided sentence: confidence as the strength of the underline, wrong words marked where a reference is known.
  decided(utterance) {
    this.show(["", "", ""], "decided");
    $("corrected-line").hidden = true;
    const texts = words(utterance.text);
    [this.heard, this.nWords] = [[], texts.length];
    const timed = utterance.words.length === texts.length ? utterance.words : []; // else they are characters of words
    const wrong = this.compare(utterance.text, utterance.reference);
    said($("sentence"), texts.length > 0);
    const spans = texts.map((text, i) => {
      const span = wordSpan(text, wrong[i] && "wrong");
      const confidence = timed[i]?.confidence;
      if (confidence !== null && confidence !== undefined) {
        span.style.setProperty("--confidence", confidence.toFixed(3));
        // A calibrated one has the search's own beside it; changed options leave that alone.
        const kind = "posterior" in timed[i] ? "confidence" : "uncalibrated confidence";
        span.title = `${kind} ${Math.round(100 * confidence)} %`;
        span.classList.add("sure");
      }
      return span;
    });
    $("stable").replaceChildren(...spans.flatMap((span, i) => (i ? [gap(), span] : [span])));
    $("tail").textContent = texts.length ? "" : (utterance.error ?? "No words");
    this.fit(0);
  }

  compare(text, reference) {
    this.reference(reference);
    if (!reference) return [];
    const meant = words(reference);
    const { wrong, missed, errors } = align(words(text), meant);
    showWords($("reference"), meant, missed, "missed");
    const unit = isOfCharacters() ? "character" : "word";
    $("verdict").textContent = errors ? `${errors} of ${meant.length} ${unit}s wrong` : `every ${unit} right`;
    return wrong;
  }

  corrected(text) {
    $("corrected-line").hidden = false;
    $("corrected").textContent = text;
  }

  // The largest type, from `size` on, in which the sentence fits its box.
  fit(size = 0) {
    const box = $("sentence-box");
    for (this.size = size; ; this.size++) {
      box.dataset.size = this.size;
      if (this.size === SIZES - 1 || $("sentence").offsetHeight <= box.clientHeight) break;
    }
  }
}
