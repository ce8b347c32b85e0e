// Other devices that show the participant's view: invited by a QR code, listed, and revoked.

import { element } from "../dom.js";

const $ = (id) => document.getElementById(id);
const LOOK_MS = 2000; // how often the list is asked for while it is seen
const RIGHTS = { read: "reads", rate: "reads and rates" };

export class Devices {
  // link asks the server; its errors are lines to show.
  constructor(link) {
    this.link = link;
    this.invited = null; // id of the device whose code is shown
    // "toggle" comes later, and once where the panel is closed and opened at once: the code would stay.
    $("devices-panel").addEventListener("beforetoggle", ({ newState }) => newState === "closed" && this.close());
    $("devices-panel").addEventListener("toggle", ({ newState }) => newState === "open" && this.open());
    $("device-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.invite();
    });
    $("invitation-copy").addEventListener("click", () => this.copy());
    $("invitation-done").addEventListener("click", () => this.forget());
  }

  open() {
    clearInterval(this.timer);
    $("devices-state").textContent = "";
    this.look();
    this.timer = setInterval(() => this.look(), LOOK_MS);
  }

  close() {
    clearInterval(this.timer);
    this.forget(false);
  }

  // Does what is asked; shows the server's line where it refuses.
  async try(work) {
    try {
      return await work();
    } catch (error) {
      $("devices-state").textContent = error.message;
      return null;
    }
  }

  async look() {
    const found = await this.try(() => this.link.get("guests"));
    if (!found) return;
    $("devices-refusal").textContent = found.refusal ? `${found.refusal[0].toUpperCase()}${found.refusal.slice(1)}.` : "";
    $("devices-refusal").hidden = !found.refusal;
    this.refused = Boolean(found.refusal);
    $("device-form").hidden = this.refused || !$("invitation").hidden;
    const shown = JSON.stringify(found.guests);
    if (shown === this.shown) return;
    this.shown = shown;
    const had = document.activeElement?.dataset.device;
    $("devices-none").hidden = found.guests.length > 0;
    $("device-list").replaceChildren(...found.guests.map((guest) => this.row(guest)));
    if (had) $("device-list").querySelector(`[data-device="${had}"]`)?.focus();
    const guest = found.guests.find(({ id }) => id === this.invited);
    if (guest?.pages) {
      this.forget(); // nobody else is to read the code
      $("devices-state").textContent = `${guest.name} is connected`;
    }
  }

  row({ id, name, rights, pages }) {
    const revoke = element("button", { type: "button", textContent: "Revoke" });
    revoke.setAttribute("aria-label", `Revoke ${name}`);
    revoke.dataset.device = id;
    revoke.addEventListener("click", () => this.revoke(id, name));
    const open = pages ? `${pages} page${pages === 1 ? "" : "s"} open` : "not connected";
    return element("li", {}, element("span", {}, element("b", { textContent: name }), element("span", { className: "note", textContent: `${RIGHTS[rights]}, ${open}` })), revoke);
  }

  async invite() {
    const name = $("device-name").value.trim();
    const made = await this.try(() => this.link.post("invite", { name, rights: $("device-rights").value }));
    if (!made) return;
    this.invited = made.id;
    $("devices-state").textContent = "";
    $("device-name").value = "";
    $("invitation-title").textContent = `Scan this code with the camera of ${made.name}`;
    $("invitation-address").value = made.url;
    // The server made the picture of rectangles; its nodes are taken over, so that nothing is loaded from an address.
    const picture = new DOMParser().parseFromString(made.qr, "image/svg+xml").documentElement;
    $("invitation-code").replaceChildren(document.importNode(picture, true));
    $("invitation-copy").textContent = "Copy";
    $("device-form").hidden = true;
    $("invitation").hidden = false;
    $("invitation-title").focus();
    this.look();
  }

  async copy() {
    const field = $("invitation-address");
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      $("invitation-copy").textContent = "Copied";
    } catch {
      $("devices-state").textContent = "The address is selected: copy it with Ctrl+C";
    }
  }

  // The code is a key: it goes when it has been used, when the panel closes, or when somebody says so.
  forget(focus = true) {
    if ($("invitation").hidden) return;
    this.invited = null;
    $("invitation").hidden = true;
    $("invitation-code").replaceChildren();
    $("invitation-address").value = "";
    $("device-form").hidden = this.refused;
    if (focus) $("device-name").focus();
  }

  async revoke(id, name) {
    if (!(await this.try(() => this.link.post("revoke", { id })))) return;
    if (this.invited === id) this.forget(false);
    $("devices-state").textContent = `${name} has no access any more`;
    await this.look();
    ($("device-list").querySelector("button") ?? $("devices-title")).focus();
  }
}
