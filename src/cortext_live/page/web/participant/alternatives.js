// Other candidates of the last sentence in large type, to choose by key, touch or dwelling.

import { bare, gap, said, words, written } from "../language.js";
import { align } from "../align.js";
import { fit } from "./sentence.js";

const $ = (id) => document.getElementById(id);

// The sentences to choose among, the best first: those whose words are the same are one.
export function candidatesOf({ nbest }, most) {
  const seen = new Set();
  const isNew = ({ text }) => {
    const key = words(text).map(bare).join(" ");
    return key && !seen.has(key) && Boolean(seen.add(key));
  };
  return nbest.filter(isNew).slice(0, most).map(({ text, shown }) => ({ text, shown: written(shown ?? text) }));
}

// The words in which a candidate differs from the best stand out: the others are the same sentence again.
function fill(box, shown, best) {
  const texts = words(shown), { wrong } = best === shown ? { wrong: [] } : align(texts, words(best));
  said(box).replaceChildren(...texts.flatMap((text, i) => {
    const word = document.createElement(wrong[i] ? "mark" : "span");
    word.textContent = text;
    return i ? [gap(), word] : [word];
  }));
}

export class Alternatives {
  // chosen(candidate) is called with the choice; closed() when the list closes without one.
  constructor(chosen, closed) {
    this.chosen = chosen;
    this.closed = closed;
    this.candidates = [];
    this.buttons = [...$("candidates").querySelectorAll("button")];
    this.buttons.forEach((button, i) => button.addEventListener("click", () => this.choose(i)));
    for (const kind of ["pointermove", "focusin"]) $("choice").addEventListener(kind, () => this.again());
    new ResizeObserver(() => this.fit()).observe($("choice"));
  }

  get isOpen() {
    return !$("choice").hidden;
  }

  // wait_s: seconds until it closes by itself, 0 for never; byPerson: somebody asked for it.
  open(candidates, wait_s, byPerson) {
    [this.candidates, this.wait_s] = [candidates, wait_s];
    this.buttons.forEach((button, i) => {
      const known = candidates[i];
      button.parentElement.hidden = !known;
      button.disabled = !known;
      if (known) fill(button.lastElementChild, known.shown, candidates[0].shown);
    });
    said($("candidates"));
    $("choice").hidden = false;
    document.body.dataset.choice = "open";
    this.fit();
    this.again();
    if (byPerson) $("choice-name").focus();
  }

  // Whoever is about to choose gets the whole time again.
  again() {
    clearInterval(this.timer);
    if (!this.isOpen || !this.wait_s) return this.count(0);
    this.until_ms = performance.now() + 1000 * this.wait_s;
    this.timer = setInterval(() => {
      const left_s = (this.until_ms - performance.now()) / 1000;
      left_s > 0 ? this.count(left_s) : this.close();
    }, 200);
    this.count(this.wait_s);
  }

  count(left_s) {
    $("choice-wait").textContent = left_s ? `Number 1 is taken in ${Math.ceil(left_s)}\u202fs` : "";
  }

  choose(i) {
    const candidate = this.candidates[i];
    if (!candidate) return;
    this.hide();
    this.chosen(candidate);
  }

  close() {
    if (!this.isOpen) return;
    this.hide();
    this.closed();
  }

  hide() {
    clearInterval(this.timer);
    if (document.activeElement.closest("#choice, #none")) $("place").focus(); // what has the focus is about to go
    $("choice").hidden = true;
    delete document.body.dataset.choice;
    for (const button of this.buttons) {
      button.disabled = true;
      button.lastElementChild.replaceChildren(); // words that are deleted later are not kept here
    }
  }

  fit() {
    const { clientWidth, clientHeight } = $("candidates");
    if (this.isOpen && clientHeight) fit($("candidates"), $("candidates"), Math.min(0.2 * clientHeight, 0.11 * clientWidth));
  }
}
