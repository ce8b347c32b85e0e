// The conversation above the sentence: the participant's sentences and the partner's turns, the newest nearest the sentence.

import { said, written } from "../language.js";

const $ = (id) => document.getElementById(id);
const MOST = 50; // entries that are shown
const PRIVATE = "private"; // begins the names of entries that have no number, because nothing is kept of them
const WHO = { participant: "I said: ", partner: "Partner: " };

export class Conversation {
  constructor() {
    this.entries = []; // { entry, who, text }, in the order in which they were said
    this.current = null; // the entry that is shown as the sentence
    this.nPrivate = 0;
    new ResizeObserver(() => this.toNewest()).observe($("talk"));
  }

  // From the server's `history`: all that it still knows.
  reset(entries) {
    this.entries = entries.map(({ entry, who, text, shown, correction }) => ({ entry, who, text: correction ?? shown ?? text }));
    this.show();
  }

  // Adds an entry, or changes the one of that number; returns its name. One without a number stays until forgetPrivate().
  add(number, who, text) {
    const entry = number ?? `${PRIVATE} ${++this.nPrivate}`;
    const known = this.entries.find((it) => it.entry === entry);
    if (known) known.text = text;
    else this.entries = [...this.entries, { entry, who, text }].slice(-MOST);
    this.show();
    return entry;
  }

  forgetPrivate() {
    this.forget(this.entries.map(({ entry }) => entry).filter((entry) => String(entry).startsWith(PRIVATE)));
  }

  // null: all of them
  forget(numbers) {
    this.entries = numbers === null ? [] : this.entries.filter(({ entry }) => !numbers.includes(entry));
    this.show();
  }

  setCurrent(entry) {
    this.current = entry;
    this.show();
  }

  // Whether the partner had the last word, after the sentence.
  get isAnswered() {
    const last = this.entries.at(-1);
    return last?.who === "partner" && this.entries.some(({ entry }) => entry === this.current);
  }

  show() {
    const seen = this.entries.filter(({ entry, text }) => entry !== this.current && text);
    said($("conversation"));
    $("conversation").replaceChildren(...seen.map(({ who, text }) => {
      const item = document.createElement("li"), name = document.createElement("span");
      item.className = who;
      name.className = "unseen";
      name.lang = "en";
      name.textContent = WHO[who];
      item.append(name, written(text));
      return item;
    }));
    document.body.dataset.talk = seen.length ? "some" : "none";
    this.toNewest();
  }

  toNewest() {
    const talk = $("talk"), isLonger = talk.scrollHeight > talk.clientHeight + 1;
    talk.dataset.longer = isLonger;
    if (isLonger) talk.tabIndex = 0; // what scrolls can be reached by key
    else talk.removeAttribute("tabindex");
    talk.scrollTop = talk.scrollHeight;
  }
}
