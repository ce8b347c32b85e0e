// Labels against time, in two lines: no two of a line touch. A label keeps its line while the picture moves.

const LINES = 2;

export class Labels {
  // widthOf(text): columns that a label takes, with the gap after it.
  constructor(widthOf) {
    this.widthOf = widthOf;
    this.all = []; // {column, text, probability, line}: line -1 where there was no room
  }

  add(column, text, probability) {
    const label = { column, text, probability };
    this.put(label, this.all);
    this.all.push(label);
  }

  // The newest label, one frame later.
  goOn(probability) {
    const label = this.all.at(-1);
    if (!label || probability <= label.probability) return;
    label.probability = probability;
    if (label.line < 0) this.put(label, this.all.slice(0, -1));
  }

  // Removes what has left the picture.
  forget(column) {
    while (this.all.length && this.all[0].column < column) this.all.shift();
  }

  // Puts all of them again, because their widths have changed.
  refit() {
    this.all.forEach((label, i) => this.put(label, this.all.slice(0, i)));
  }

  ends(label) {
    const half = this.widthOf(label.text) / 2;
    return [label.column - half, label.column + half];
  }

  // Chooses a line. Where none has room, the less probable of two labels is left out.
  put(label, before) {
    const [start] = this.ends(label);
    const last = (line, n) => before.filter((it) => it.line === line).at(-n);
    const hasRoom = (line, n) => !last(line, n) || this.ends(last(line, n))[1] <= start;
    const lines = [...Array(LINES).keys()];
    label.line = lines.find((line) => hasRoom(line, 1)) ?? -1;
    if (label.line >= 0) return;
    const weaker = lines.filter((line) => last(line, 1).probability < label.probability && hasRoom(line, 2));
    if (!weaker.length) return;
    label.line = weaker.reduce((a, b) => (last(b, 1).probability < last(a, 1).probability ? b : a));
    last(label.line, 1).line = -1;
  }
}
