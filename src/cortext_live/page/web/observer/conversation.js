// The conversation: what the participant and the partner said, found, saved as a file, deleted; and the switch that keeps nothing.

import { element } from "../dom.js";
import { said, written } from "../language.js";

const $ = (id) => document.getElementById(id);
const AT_ONCE = 100; // entries that are asked for
const SOON_MS = 150; // several messages are one question to the server
const HOUR_MS = 3600e3;
const WHO = { participant: "Participant", partner: "Partner" };

const count = (n) => `${n} ${n === 1 ? "entry" : "entries"}`;

// The clock at the place of use, and the day unless that is today.
function time(when) {
  const clock = when.slice(11, 16), day = when.slice(0, 10), today = new Date();
  const same = new Date(when).toDateString() === today.toDateString();
  return same ? clock : `${day} ${clock}`;
}

export class Conversation {
  // link asks the server; say() announces.
  constructor(link, say) {
    this.link = link;
    this.say = say;
    this.entries = [];
    this.asked = 0; // the newest question's number: a slower answer to an older one is dropped
    this.pending = null; // what is deleted once that is confirmed
    $("conversation-panel").addEventListener("toggle", ({ newState }) => (newState === "open" ? this.open() : this.keep()));
    $("turn-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.addTurn();
    });
    $("talk-search").addEventListener("input", () => this.soon());
    $("talk-earlier").addEventListener("click", () => this.load(this.entries[0]?.entry));
    for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => this.save(button.dataset.export));
    $("talk-hour").addEventListener("click", () => {
      const since = new Date(Date.now() - HOUR_MS).toISOString();
      this.confirm("Delete everything of the last hour?", { since });
    });
    $("talk-all").addEventListener("click", () => this.confirm("Delete the whole conversation, of all days?", { all: true }));
    $("talk-delete").addEventListener("click", () => this.remove());
    $("talk-keep").addEventListener("click", () => this.keep(true));
    $("private").addEventListener("change", () => this.change("private", { on: $("private").checked }));
    $("talk-context").addEventListener("change", () => this.change("context", { conversation: $("talk-context").checked }));
  }

  // The server's state, and its greeting.
  show(state, { llm }) {
    const isPrivate = Boolean(state.private);
    if (this.isPrivate !== undefined && this.isPrivate !== isPrivate)
      this.say(isPrivate ? "Private: nothing is kept" : "No longer private: sentences are kept again");
    this.isPrivate = isPrivate;
    $("private-mark").hidden = !isPrivate;
    $("private").checked = isPrivate;
    $("talk-context-line").hidden = !llm;
    $("talk-context").checked = Boolean(state.context_conversation);
  }

  // The conversation has changed.
  changed() {
    if (this.isOpen) this.soon();
  }

  // Takes every entry off the page.
  clear() {
    this.asked += 1; // an answer that is on its way is dropped
    this.entries = [];
    $("talk-list").replaceChildren();
    this.keep();
  }

  get isOpen() {
    return $("conversation-panel").matches(":popover-open");
  }

  get search() {
    return $("talk-search").value.trim();
  }

  async open() {
    $("talk-state").textContent = "";
    await this.load();
    this.toNewest();
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), SOON_MS);
  }

  // Does what is asked; shows the server's line where it refuses.
  async try(work) {
    try {
      return await work();
    } catch (error) {
      $("talk-state").textContent = error.message;
      return null;
    }
  }

  // Asks for the latest entries, or for those before one.
  async load(before) {
    const number = ++this.asked, query = new URLSearchParams({ limit: AT_ONCE });
    if (this.search) query.set("search", this.search);
    if (before !== undefined) query.set("before", before);
    const found = await this.try(() => this.link.get(`conversation?${query}`));
    if (!found || number !== this.asked) return;
    const box = $("talk-box"), isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    this.entries = before === undefined ? found.entries : [...found.entries, ...this.entries];
    $("talk-earlier").hidden = !found.more;
    $("talk-none").hidden = this.entries.length > 0;
    $("talk-none").textContent = this.search ? "Nothing was found." : "Nothing is kept yet.";
    const focused = document.activeElement?.dataset.entry;
    $("talk-list").replaceChildren(...this.entries.map((entry) => this.row(entry)));
    if (focused) ($("talk-list").querySelector(`[data-entry="${focused}"]`) ?? box).focus();
    if (isAtEnd && before === undefined) this.toNewest();
  }

  toNewest() {
    $("talk-box").scrollTop = $("talk-box").scrollHeight;
  }

  row({ entry, who, when, shown, correction, rating }) {
    const text = correction ?? shown, words = said(element("p", { textContent: who === "participant" ? written(text) : text }));
    const facts = [time(when), WHO[who], correction === undefined ? null : "corrected", rating && `rated ${rating}`];
    const note = element("p", { className: "note", textContent: facts.filter(Boolean).join(" \u00b7 ") });
    const remove = element("button", { type: "button", textContent: "Delete", ariaLabel: `Delete: ${text}` });
    remove.dataset.entry = entry;
    remove.addEventListener("click", () => this.confirm(`Delete \u201c${text}\u201d?`, { entries: [entry] }, remove));
    return element("li", { className: who }, element("div", {}, note, words), remove);
  }

  async addTurn() {
    const input = $("turn"), text = input.value.trim();
    if (!text) return;
    if (await this.try(() => this.link.post("turn", { text }))) {
      input.value = "";
      $("talk-state").textContent = this.isPrivate ? "Shown, and not kept: the conversation is private." : "";
    }
    input.focus();
  }

  async change(action, body) {
    const box = document.activeElement;
    if (!(await this.try(() => this.link.post(action, body)))) box.checked = !box.checked;
  }

  async save(format) {
    const query = new URLSearchParams({ format });
    if (this.search) query.set("search", this.search);
    await this.try(async () => {
      const answer = await fetch(`api/export?${query}`, { headers: this.link.headers() }).catch(() => {
        throw new Error("The server does not answer.");
      });
      if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? "The server refused the request.");
      const name = /filename="([\w.-]+)"/.exec(answer.headers.get("Content-Disposition"))?.[1] ?? "conversation.txt";
      const link = element("a", { href: URL.createObjectURL(await answer.blob()), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      $("talk-state").textContent = `Saved as ${name}`;
    });
  }

  // Asks before something is deleted: nothing brings it back.
  confirm(question, body, from = document.activeElement) {
    this.pending = { body, from };
    $("talk-question").textContent = question;
    $("talk-confirm").hidden = false;
    $("talk-keep").focus();
  }

  // Deletes nothing.
  keep(back = false) {
    $("talk-confirm").hidden = true;
    $("talk-question").textContent = "";
    if (back && this.pending?.from.isConnected) this.pending.from.focus();
    this.pending = null;
  }

  async remove() {
    const { body } = this.pending;
    this.keep();
    $("conversation-title").focus();
    $("talk-state").textContent = "Deleting\u2026";
    const done = await this.try(() => this.link.post("forget", body));
    if (!done) return;
    const { deleted, models, notes } = done;
    const learnt = models.length ? `Models that learnt from it stay as they are: ${models.join(", ")}.` : "";
    $("talk-state").textContent = [`${count(deleted)} deleted.`, learnt, ...notes].filter(Boolean).join(" ");
  }
}
