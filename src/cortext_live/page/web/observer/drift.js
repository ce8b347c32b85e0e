// What has drifted in daily use, as the server's report tells it: sentences, a picture by day or block, a table of days.

import { element } from "../dom.js";
import { scales } from "./colour.js";

const $ = (id) => document.getElementById(id);
const MAPS = [
  { kind: "shift", name: "Means", full: 0.5, low: "\u22120.5", high: "+0.5\u202fSD" },
  { kind: "spread", name: "Standard deviations", full: 0.7, low: "\u00f7\u20091.6", high: "\u00d7\u20091.6" },
  { kind: "dead", name: "Dead electrodes", full: 1, low: "none", high: "all" },
];
const LINES = [["confidence", "confidence"], ["corrected", "corrected"]];
const DASH = "\u2013";

const percent = (value) => (value === null || value === undefined ? DASH : `${Math.round(100 * value)}\u2009%`);

export class Drift {
  // get(name) asks the server; it throws an Error with the server's line.
  constructor(get) {
    this.get = get;
    this.report = null;
    $("drift-panel").addEventListener("toggle", ({ newState }) => newState === "open" && this.load());
    $("drift-columns").addEventListener("change", () => this.draw());
    addEventListener("resize", () => this.draw());
  }

  async load() {
    $("drift-state").textContent = `${this.report ? "Reading what is new" : "Reading the usage log"}\u2026 Decoding goes first: this takes long while the computer is busy.`;
    try {
      this.report = await this.get("drift");
      $("drift-state").textContent = "";
    } catch (error) {
      $("drift-state").textContent = error.message;
      return;
    }
    this.tell();
    this.draw();
  }

  tell() {
    const { changes, alerts, notes, days } = this.report, isNew = new Set(alerts);
    const sentences = changes.length ? changes : ["Nothing has changed by more than usual."];
    $("drift-changes").replaceChildren(...sentences.map((text) => element("li", { className: isNew.has(text) ? "wrong" : "", textContent: text })));
    $("drift-notes").replaceChildren(...notes.map((text) => element("li", { textContent: text })));
    $("drift-days").tBodies[0].replaceChildren(...days.toReversed().map((day) => {
      const arrays = Object.values(day.arrays);
      const total = (count) => (arrays.length ? arrays.reduce((sum, array) => sum + count(array), 0) : DASH);
      const models = Object.entries(day.use?.models ?? {}).sort(([, a], [, b]) => b - a).map(([name]) => name);
      const cells = [
        total((array) => array.dead),
        total((array) => array.new.length),
        percent(day.use?.confidence),
        percent(day.use?.corrected),
        day.day_layer_distance?.weight?.toFixed(2) ?? DASH,
        models.join(", ") || DASH,
      ];
      return element("tr", {}, element("th", { scope: "row", textContent: day.date ?? day.session }), ...cells.map((text) => element("td", { textContent: text })));
    }));
    for (const id of ["drift-picture", "drift-table"]) $(id).hidden = false;
    $("drift-maps").hidden = !this.report.arrays.length;
  }

  // Columns of the picture: days, or their blocks.
  columns() {
    if ($("drift-columns").value === "days") return this.report.days.map(({ arrays, date, session }) => ({ arrays, name: date ?? session }));
    return this.report.days.flatMap(({ blocks }) => blocks.map(({ arrays, block }) => ({ arrays, name: block.replace("T", " ").slice(0, 16) })));
  }

  draw() {
    if (!this.report || !$("drift-panel").matches(":popover-open")) return;
    const columns = this.columns(), colours = scales();
    for (const map of MAPS) {
      const box = $(`drift-${map.kind}`);
      box.hidden = map.kind === "dead" && $("drift-columns").value !== "days";
      if (!box.hidden) this.map(box, map, columns, map.kind === "dead" ? colours.phonemes : colours.features);
    }
    $("drift-first").textContent = columns[0]?.name ?? "";
    $("drift-last").textContent = columns.length > 1 ? columns.at(-1).name : "";
    $("drift-use").hidden = $("drift-columns").value !== "days" || !this.report.days.some(({ use }) => use);
    if (!$("drift-use").hidden) this.lines();
  }

  // A pixel for each array and column, stretched: cells keep sharp edges at any size.
  map(box, { kind, full }, columns, colours) {
    const names = this.report.arrays, canvas = box.querySelector("canvas");
    const image = new ImageData(Math.max(1, columns.length), names.length), pixels = new Uint32Array(image.data.buffer);
    columns.forEach(({ arrays }, x) => names.forEach((name, y) => {
      const found = arrays[name], value = kind === "dead" ? found && found.dead / found.electrodes : found?.[kind];
      if (value === null || value === undefined) return; // not measured: nothing is drawn
      const share = kind === "dead" ? value : (Math.max(-1, Math.min(1, value / full)) + 1) / 2;
      pixels[y * image.width + x] = colours[Math.round(255 * share)];
    }));
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    box.querySelector("ul").replaceChildren(...names.map((name) => element("li", { textContent: name })));
  }

  lines() {
    const canvas = $("drift-lines"), { width, height } = canvas.getBoundingClientRect(), scale = devicePixelRatio;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d"), style = getComputedStyle(canvas), { days } = this.report;
    context.scale(scale, scale);
    context.lineWidth = 2;
    LINES.forEach(([kind], number) => {
      context.strokeStyle = context.fillStyle = number ? style.caretColor : style.color;
      context.setLineDash(number ? [5, 4] : []);
      context.beginPath();
      let drawing = false;
      days.forEach((day, i) => {
        const value = day.use?.[kind];
        if (value === null || value === undefined) return (drawing = false);
        const x = ((i + 0.5) / days.length) * width, y = 4 + (1 - value) * (height - 8);
        if (drawing) context.lineTo(x, y);
        else context.moveTo(x, y);
        context.fillRect(x - 2, y - 2, 4, 4);
        drawing = true;
      });
      context.stroke();
    });
  }
}
