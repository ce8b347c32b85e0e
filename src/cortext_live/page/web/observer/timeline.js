// Features and phoneme probabilities against time, as moving pictures.
//
// Everything has a column: one bin of features, counted since the page was loaded. A strip keeps the last COLUMNS of them in a
// ring, as values and as a picture one pixel a column; to paint is to copy that picture, so that memory and work do not
// depend on how long one watches. Who wants less motion gets a sweep: the picture stands still and a gap moves over it.

import { scales } from "./colour.js";
import { Labels } from "./labels.js";

const COLUMNS = 1024;
const PAUSE_COLUMNS = 12; // between two utterances
const SWEEP_GAP = 8;
const LABEL_GAP = 0.45; // between two labels of a line, of the type's size
const LEAST_WIDTH = 0.6; // of a word: narrower letters cannot be read, and it is left out
const SHOWN_MS = 9200; // about so long a time, wherever whole pixels allow it

const fewMotions = matchMedia("(prefers-reduced-motion: reduce)");

// [first column, column after the last, place of the first] of what is shown at `now`, of `width` columns.
function pieces(now, width) {
  if (!fewMotions.matches) return [[now - width, now, 0]];
  const turn = Math.floor(now / width) * width;
  const old = now - width + SWEEP_GAP;
  return [[turn, now, 0], [old, turn, old - turn + width]].filter(([first, end]) => first < end);
}

// The height of each group: that of its rows, and at least enough to read its name beside it.
export function weights(groups) {
  const least = 0.15 * groups.reduce((sum, { rows }) => sum + rows.length, 0);
  return groups.map(({ rows }) => Math.max(rows.length, least));
}

class Strip {
  // groups: [{name, rows: [index of each value]}], from top to bottom.
  constructor(canvas, groups, nValues) {
    this.canvas = canvas;
    this.groups = groups;
    this.nValues = nValues;
    this.values = new Uint8Array(COLUMNS * nValues);
    this.written = new Uint8Array(COLUMNS);
    this.picture = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    this.screen = canvas.getContext("2d");
  }

  // Fits the picture to the canvas: where there are more values than pixels, neighbours of a group are averaged.
  fit(ratio, pixels) {
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    const gap = Math.round(3 * ratio);
    const heights = weights(this.groups), whole = heights.reduce((sum, height) => sum + height, 0);
    const free = this.canvas.height - gap * (this.groups.length - 1);
    let before = 0, nLines = 0;
    this.bands = this.groups.map(({ rows }, i) => {
      const top = Math.round((free * before) / whole), bottom = Math.round((free * (before += heights[i])) / whole);
      const height = Math.max(1, bottom - top), n = Math.min(rows.length, height), line = nLines;
      nLines += n;
      const lines = Array.from({ length: n }, (_, k) =>
        rows.slice(Math.floor((k * rows.length) / n), Math.floor(((k + 1) * rows.length) / n)));
      return { top: top + gap * i, height, line, n, lines };
    });
    this.picture.canvas.width = COLUMNS;
    this.picture.canvas.height = nLines;
    this.column = new ImageData(1, nLines);
    this.columnPixels = new Uint32Array(this.column.data.buffer);
    this.colour(pixels);
  }

  colour(pixels) {
    this.pixels = pixels;
    for (let slot = 0; slot < COLUMNS; slot++) if (this.written[slot]) this.draw(slot);
  }

  draw(slot) {
    const start = slot * this.nValues;
    let at = 0;
    for (const { lines } of this.bands)
      for (const line of lines) {
        let sum = 0;
        for (const row of line) sum += this.values[start + row];
        this.columnPixels[at++] = this.pixels[Math.round(sum / line.length)];
      }
    this.picture.putImageData(this.column, slot, 0);
  }

  write(column, values, start) {
    const slot = column % COLUMNS;
    for (let i = 0; i < this.nValues; i++) this.values[slot * this.nValues + i] = values[start + i];
    this.written[slot] = 1;
    this.draw(slot);
  }

  clear(column) {
    const slot = column % COLUMNS;
    if (!this.written[slot]) return;
    this.written[slot] = 0;
    this.picture.clearRect(slot, 0, 1, this.picture.canvas.height);
  }

  paint(now, width, scale) {
    const { screen } = this;
    screen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    screen.imageSmoothingEnabled = false;
    screen.fillStyle = getComputedStyle(this.canvas).color; // nothing yet
    for (const { top, height } of this.bands) screen.fillRect(0, top, this.canvas.width, height);
    for (const [first, end, place] of pieces(now, width))
      for (let from = Math.max(0, first); from < end; ) {
        const slot = from % COLUMNS, n = Math.min(end - from, COLUMNS - slot);
        for (const { top, height, line, n: nLines } of this.bands)
          screen.drawImage(this.picture.canvas, slot, line, n, nLines, (place + from - first) * scale, top, n * scale, height);
        from += n;
      }
  }
}

export class Timeline {
  // groups of features: [{name, rows}]; of phonemes likewise; tokens: the symbol of each, null where it is not written.
  constructor({ features, phonemes, marks }, featureGroups, nFeatures, phonemeGroups, tokens, { bin_ms, frame_ms }) {
    this.features = new Strip(features, featureGroups, nFeatures);
    this.phonemes = new Strip(phonemes, phonemeGroups, tokens.length);
    this.marks = marks;
    this.tokens = tokens;
    this.bin_ms = bin_ms;
    this.frameColumns = Math.round(frame_ms / bin_ms);
    this.now = this.origin = this.nFrames = 0;
    this.late = 0; // columns from the end of the newest frame to the newest bin
    this.winner = 0;
    this.widths = new Map(); // of labels, in device pixels
    this.labels = new Labels((text) => this.widthOf(text) / this.scale); // phonemes as they won
    this.spoken = []; // {start, end, text}: words as they were decided
    this.watcher = new ResizeObserver(() => this.fit());
    for (const canvas of [features, phonemes, marks]) this.watcher.observe(canvas);
    fewMotions.onchange = () => this.fit();
    document.fonts.ready.then(() => this.fit()); // widths are those of the typeface
    this.fit();
  }

  end() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.waiting);
  }

  fit() {
    this.ratio = devicePixelRatio || 1;
    this.colours = scales();
    this.features.fit(this.ratio, this.colours.features);
    this.phonemes.fit(this.ratio, this.colours.phonemes);
    this.marks.width = Math.max(1, Math.round(this.marks.clientWidth * this.ratio));
    this.marks.height = Math.max(1, Math.round(this.marks.clientHeight * this.ratio));
    this.scale = Math.max(1, Math.round((this.marks.width * this.bin_ms) / SHOWN_MS));
    this.style = getComputedStyle(this.marks);
    this.size = parseFloat(this.style.fontSize) * this.ratio;
    this.widths.clear();
    this.labels.refit();
    this.width = Math.min(COLUMNS - PAUSE_COLUMNS, Math.ceil(this.marks.width / this.scale));
    this.soon();
  }

  // Of a phoneme's label, with the gap after it.
  widthOf(text) {
    if (!this.widths.has(text)) {
      const pen = this.pen("600", 1);
      this.widths.set(text, pen.measureText(text).width + LABEL_GAP * this.size);
    }
    return this.widths.get(text);
  }

  pen(weight, size) {
    const pen = this.marks.getContext("2d");
    pen.font = `${weight} ${size * this.size}px ${this.style.fontFamily}`;
    return pen;
  }

  begin() {
    if (this.now) this.advance(PAUSE_COLUMNS);
    this.origin = this.now;
    this.nFrames = 0;
    this.winner = 0;
  }

  advance(n) {
    for (let column = Math.max(this.now, this.now + n - COLUMNS); column < this.now + n; column++) {
      this.features.clear(column);
      this.phonemes.clear(column);
    }
    this.now += n;
    this.labels.forget(this.now - COLUMNS);
    while (this.spoken.length && this.spoken[0].end < this.now - COLUMNS) this.spoken.shift();
    this.soon();
  }

  // bins [n, features], the last of which ends `until` columns after the utterance's beginning; the server leaves out
  // what a slow page cannot take.
  addBins(bins, n, until) {
    const first = this.origin + until - n;
    this.advance(first + n - this.now);
    for (let i = 0; i < n; i++) this.features.write(first + i, bins, i * this.features.nValues);
  }

  // After a gap: the next n frames end as long before the newest bin as those before the gap did.
  resume(until, n) {
    this.nFrames = Math.max(0, Math.round((until - this.late) / this.frameColumns) - n);
  }

  // posteriors [n, tokens]; they come later than the bins they tell of, and are drawn under them.
  addFrames(posteriors, n) {
    const nTokens = this.tokens.length, { frameColumns } = this;
    for (let i = 0; i < n; i++) {
      const column = this.origin + frameColumns * this.nFrames++;
      if (column + frameColumns > this.now) this.advance(column + frameColumns - this.now);
      if (column < this.now - COLUMNS) continue;
      for (let k = 0; k < frameColumns; k++) this.phonemes.write(column + k, posteriors, i * nTokens);
      let best = 0;
      for (let v = 1; v < nTokens; v++) if (posteriors[i * nTokens + v] > posteriors[i * nTokens + best]) best = v;
      const text = this.tokens[best], probability = posteriors[i * nTokens + best];
      if (best === this.winner && text !== null) this.labels.goOn(probability);
      else if (text !== null) this.labels.add(column + frameColumns / 2, text, probability);
      this.winner = best;
    }
    if (n) this.late = this.now - this.origin - frameColumns * this.nFrames;
    this.soon();
  }

  addWords(words) {
    for (const { word, start_ms, end_ms } of words)
      this.spoken.push({ start: this.origin + start_ms / this.bin_ms, end: this.origin + end_ms / this.bin_ms, text: word });
    this.soon();
  }

  soon() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.paint();
    });
  }

  paint() {
    this.features.paint(this.now, this.width, this.scale);
    this.phonemes.paint(this.now, this.width, this.scale);
    this.paintMarks();
  }

  // Where a column is on the screen, in device pixels; undefined where it is not shown.
  place(column) {
    for (const [first, end, place] of pieces(this.now, this.width))
      if (column >= first && column < end) return (place + column - first) * this.scale;
    return undefined;
  }

  paintMarks() {
    const { marks, style, size } = this, pen = this.pen("600", 1), line = marks.height / 4;
    pen.clearRect(0, 0, marks.width, marks.height);
    pen.textBaseline = "middle";
    pen.fillStyle = style.color;
    pen.textAlign = "center";
    const placed = this.labels.all.filter((label) => label.line >= 0)
      .map((label) => ({ ...label, x: this.place(label.column), half: this.widthOf(label.text) / 2 }))
      .filter(({ x }) => x !== undefined);
    for (const label of placed.filter((it) => !this.isSwept(it, placed)))
      pen.fillText(label.text, label.x, line * (label.line ? 1.35 : 0.55));
    pen.textAlign = "left";
    const words = this.spoken.map((word) => ({ ...word, left: this.place(word.start), right: this.place(word.end) ?? this.place(word.end - 1) }))
      .filter(({ left, right }) => left !== undefined && right !== undefined && right >= left)
      .sort((a, b) => a.left - b.left);
    words.forEach((word, i) => this.paintWord(pen, word, words[i + 1]?.left ?? 2 * marks.width, size, line));
    if (!fewMotions.matches) this.paintSeconds(pen, style, size, line);
  }

  // Whether the newest labels, which come from the left in a sweep, have reached an older one.
  isSwept({ line, x, half, column }, placed) {
    if (!fewMotions.matches) return false;
    const turn = Math.floor(this.now / this.width) * this.width;
    return column < turn && placed.some((it) => it.column >= turn && it.line === line && it.x + it.half > x - half);
  }

  // A word's letters get narrower where the next word begins.
  paintWord(pen, { left, right, text }, next, size, line) {
    const most = next - left - LABEL_GAP * size;
    pen.fillRect(left, line * 1.95, Math.max(right - left - 2 * this.ratio, 1), this.ratio);
    if (most > LEAST_WIDTH * pen.measureText(text).width) pen.fillText(text, left, line * 2.5, most);
  }

  paintSeconds(pen, style, size, line) {
    pen.fillStyle = style.getPropertyValue("caret-color");
    this.pen("400", 0.85);
    pen.textAlign = "center";
    const columns = 1000 / this.bin_ms; // of a second
    for (let second = 1; second * columns < this.width - 0.3 * columns; second++)
      pen.fillText(`\u2212${second} s`, (this.width - second * columns) * this.scale, line * 3.5);
  }
}
