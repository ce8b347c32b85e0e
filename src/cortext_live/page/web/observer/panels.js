// The most likely sentences, latency and the totals since the server started. Rows are made once and filled again.

import { align } from "../align.js";
import { isOfCharacters, said, words } from "../language.js";
import { showWords } from "./sentence.js";

const $ = (id) => document.getElementById(id);
const STAGES = [
  ["normalise", "Normalise"], ["smooth", "Smooth"], ["model", "Model"], ["search", "Word search"], ["total", "Whole step"],
];
const WORST = 12; // a candidate so many nats below the best has no bar left

const rows = (box, n, make) => {
  while (box.children.length < n) box.append(make());
  while (box.children.length > n) box.lastChild.remove();
  return [...box.children];
};

const element = (name, ...children) => {
  const made = document.createElement(name);
  made.append(...children);
  return made;
};

const bar = (kind) => {
  const made = element("span");
  made.className = kind;
  made.ariaHidden = "true";
  return made;
};

function candidate(choose) {
  const button = element("button");
  button.type = "button";
  button.addEventListener("click", () => choose(button.parentElement.dataset.text));
  const number = element("span"); // no <output>: a screen reader would read every score as it changes
  number.className = "number";
  return element("li", button, bar("score"), number);
}

// What differs from the best stands out: the rest of a candidate is the same sentence again.
export function showCandidates(nbest, choose) {
  const best = nbest[0], bestWords = words(best.text);
  rows($("nbest"), nbest.length, () => candidate(choose)).forEach((row, i) => {
    const { text, score, acoustic, ngram, llm } = nbest[i], below = best.score - score;
    const [button, line, number] = row.children, texts = words(text);
    row.dataset.text = text;
    const different = i ? align(texts, bestWords).wrong : texts.map(() => false);
    said(button, texts.length > 0);
    showWords(button, texts.length ? texts : ["(no words)"], different, "different");
    const parts = [["acoustic model", acoustic], ["n-gram", ngram], ["large model", llm]];
    row.title = parts.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => `${name} ${value.toFixed(1)}`).join(", ");
    line.style.setProperty("--share", Math.max(0, 1 - below / WORST).toFixed(3));
    number.textContent = signed(i ? -below : score);
  });
}

const signed = (value) => value.toFixed(1).replace("-", "\u2212");
export const ms = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toString());

export function showLatency(latency, final_ms, budget_ms) {
  const known = STAGES.filter(([stage]) => latency?.[stage]).map(([stage, name]) => [name, latency[stage], stage]);
  if (final_ms?.p99 !== null && final_ms?.p99 !== undefined) known.push(["Final text", final_ms, "final"]);
  const body = $("latency").tBodies[0];
  rows(body, known.length, () => {
    const name = element("th");
    name.scope = "row";
    return element("tr", name, element("td", bar("budget")), element("td"), element("td"));
  }).forEach((row, i) => {
    const [name, { p50, p99 }, stage] = known[i];
    row.dataset.stage = stage;
    row.classList.toggle("over", p99 > budget_ms);
    row.children[0].textContent = name;
    const share = row.children[1].firstChild.style;
    share.setProperty("--p50", Math.min(1, p50 / budget_ms).toFixed(4));
    share.setProperty("--p99", Math.min(1, p99 / budget_ms).toFixed(4));
    row.children[2].textContent = ms(p50);
    row.children[3].textContent = `${ms(p99)} ms`;
  });
}

export function showStats({ n_utterances, n_words, wer, words_per_minute }) {
  const or = (value, text) => (value === null || value === undefined ? "\u2013" : text());
  const unit = isOfCharacters() ? "character" : "word";
  $("stat-wer-name").textContent = `${unit} error rate`;
  $("stat-wpm-name").textContent = `${unit}s per minute`;
  $("stat-wer").textContent = or(wer, () => `${(100 * wer).toFixed(1)}\u2009%`);
  $("stat-wpm").textContent = or(words_per_minute, () => Math.round(words_per_minute).toString());
  $("stat-count").textContent = n_utterances.toString();
  $("stat-count-name").textContent = n_utterances === 1 ? "sentence" : "sentences";
  $("stat-count").title = `${n_words} ${unit}s`;
}
