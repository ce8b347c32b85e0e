// The editor: a finished sentence as text to change, with its own reference, while others form above it.

import { said, written } from "../language.js";

const $ = (id) => document.getElementById(id);

export class Editor {
  constructor(save) {
    this.save = save; // save(utterance, text) -> whether it was kept
    this.utterance = null;
    $("editor").addEventListener("submit", (event) => {
      event.preventDefault();
      this.keep();
    });
    $("editor-cancel").addEventListener("click", () => this.close());
    $("correction").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      this.keep();
    });
    document.addEventListener("keydown", ({ key }) => {
      if (key === "Escape" && this.utterance && !document.querySelector(":popover-open")) this.close();
    });
  }

  // Opens an utterance's text to change; `text` is a candidate that is nearer, if any.
  open(utterance, text) {
    this.utterance = utterance;
    said($("editor-quoted"), utterance.text !== "").textContent = utterance.text ? `\u201c${written(utterance.text)}\u201d` : "no words";
    $("editor-prompt-line").hidden = !utterance.reference;
    $("editor-prompt").textContent = utterance.reference ?? "";
    $("correction").value = written(text);
    $("editor").hidden = false;
    $("correction").focus();
    $("correction").select();
  }

  async keep() {
    if (await this.save(this.utterance, $("correction").value.trim())) this.close();
  }

  close() {
    this.utterance = null;
    for (const id of ["editor-quoted", "editor-prompt"]) $(id).textContent = ""; // words that are deleted later are not kept here
    $("correction").value = "";
    $("editor").hidden = true;
    $("correct").focus();
  }
}
