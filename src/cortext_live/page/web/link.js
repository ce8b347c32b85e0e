// The server: its messages by web socket, and what it is asked to do by HTTP. Comes back by itself after a restart.

const SOONEST_MS = 500, LATEST_MS = 5000;
const POLICY_VIOLATION = 1008; // the code with which the server ends the web socket of a revoked token
export const WITHDRAWN = "Access was withdrawn";

export class Link {
  // receive(message) gets every message; change(state, text) every change of the connection:
  // "connecting", "open", "away" (tries again) or "refused" (needs another token).
  constructor(receive, change) {
    this.receive = receive;
    this.change = change;
    this.wait_ms = SOONEST_MS;
    this.socket = null;
    addEventListener("hashchange", () => this.open());
    addEventListener("online", () => this.open());
  }

  get token() {
    return new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  }

  open() {
    clearTimeout(this.timer);
    this.socket?.close();
    const address = new URL("ws", document.baseURI);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    address.hash = "";
    if (this.token) address.searchParams.set("token", this.token);
    const socket = (this.socket = new WebSocket(address));
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      const message = JSON.parse(event.data);
      if (message.type === "hello") {
        this.greeted = true;
        this.wait_ms = SOONEST_MS;
        this.change("open", "Connected");
      }
      this.receive(message);
    };
    socket.onclose = (event) => socket === this.socket && this.lost(event);
  }

  async lost({ code, reason: why }) {
    const withdrawn = this.greeted && code === POLICY_VIOLATION;
    const reason = withdrawn ? WITHDRAWN : this.greeted ? "" : await this.refusal();
    this.greeted = false;
    if (reason) return this.change("refused", reason);
    this.change("away", `${why || "No answer from the server"}, trying again`);
    this.timer = setTimeout(() => this.open(), this.wait_ms);
    this.wait_ms = Math.min(2 * this.wait_ms, LATEST_MS);
  }

  // A browser does not tell why a web socket was refused; the same question by HTTP does.
  async refusal() {
    try {
      const answer = await fetch("api/state", { headers: this.headers() });
      return answer.status === 401 || answer.status === 403 ? (this.token ? "Wrong access token" : "Access token missing") : "";
    } catch {
      return "";
    }
  }

  headers() {
    return this.token ? { Authorization: `Bearer ${this.token}` } : {};
  }

  // Asks for a change; throws an Error with the server's own line where it refuses.
  post(action, body = {}) {
    return this.ask(action, {
      method: "POST",
      headers: { ...this.headers(), "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }, "The server does not answer; nothing was changed.");
  }

  // Asks for an answer that is read while it comes; throws likewise.
  async stream(action, body, signal) {
    const headers = { ...this.headers(), "Content-Type": "application/json" };
    const answer = await fetch(`api/${action}`, { method: "POST", headers, body: JSON.stringify(body), signal }).catch(() => {
      throw new Error("The server does not answer.");
    });
    if (answer.ok) return answer;
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `The server refused the request (${answer.status}).`);
  }

  // Asks for what the server knows; throws likewise.
  get(name) {
    return this.ask(name, { headers: this.headers() }, "The server does not answer.");
  }

  async ask(name, request, silence) {
    let answer;
    try {
      answer = await fetch(`api/${name}`, request);
    } catch {
      throw new Error(silence);
    }
    const result = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(result.error ?? `The server refused the request (${answer.status}).`);
    return result;
  }
}
