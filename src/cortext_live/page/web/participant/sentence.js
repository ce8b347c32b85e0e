// The sentence, as large as its place allows. While words come in the type only shrinks, so that nothing jumps.

import { gap, joined, said, words, written } from "../language.js";

const $ = (id) => document.getElementById(id);
const SHRINK = 0.9; // from one size of type to the next
const SIZES = 28;
const LEAST_PX = 15;

// Gives `box` the largest type in which it overflows neither itself nor `place`, from size number `from` on (0 is
// `largest` px); returns the number. The smallest is taken where none is small enough.
export function fit(place, box, largest, from = 0) {
  const set = (n) => place.style.setProperty("--type", `${Math.max(LEAST_PX, largest * SHRINK ** n).toFixed(2)}px`);
  const fits = (n) => {
    set(n);
    return box.scrollWidth <= box.clientWidth && place.scrollHeight <= place.clientHeight;
  };
  let low = from, high = SIZES;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (fits(middle)) high = middle;
    else low = middle + 1;
  }
  set(low);
  place.dataset.smallest = low === SIZES;
  return low;
}

export class Sentence {
  constructor() {
    this.size = 0;
    this.nWords = 0;
    this.clear();
    new ResizeObserver(() => this.fit(0)).observe($("place"));
    document.fonts?.ready.then(() => this.fit(0));
  }

  forming(stable, tail) {
    const nStable = words(stable).length, guess = words(`${stable} ${tail}`);
    const goesOn = this.kind === "forming" && guess.length >= this.nWords;
    this.nWords = guess.length;
    this.show([guess.slice(0, nStable), guess.slice(nStable)].map(joined), "forming", goesOn ? this.size : 0);
  }

  decided(text) {
    this.show([written(text), ""], "decided", 0);
  }

  clear() {
    this.show(["", ""], "none", 0);
  }

  // kind: "none", "forming" or "decided"
  show(parts, kind, from) {
    const shown = JSON.stringify([kind, ...parts]);
    if (shown === this.shown) return;
    [this.shown, this.kind] = [shown, kind];
    said($("sentence")).dataset.kind = kind;
    $("stable").textContent = parts[0] && parts[1] ? parts[0] + gap() : parts[0];
    $("tail").textContent = parts[1];
    this.fit(from);
  }

  fit(from) {
    const { clientWidth, clientHeight } = $("place");
    if (!clientHeight) return;
    this.size = fit($("place"), $("sentence"), Math.min(0.42 * clientHeight, 0.24 * clientWidth), from);
    $("place").scrollTop = $("place").scrollHeight; // where even the smallest type is too large, the newest words are seen
  }
}
