// The participant's view: the sentence alone, the conversation above it, one line of state. The protocol is in
// docs/reference/web-socket.md.

import { Dwell } from "../dwell.js";
import { setLanguage } from "../language.js";
import { Link } from "../link.js";
import { keys, theme } from "../preferences.js";
import { Voice } from "../voice.js";
import { VoicePanel } from "../voice_panel.js";
import { Alternatives, candidatesOf } from "./alternatives.js";
import { Conversation } from "./conversation.js";
import { atRest, fullScreen, keepAwake } from "./screen.js";
import { Sentence } from "./sentence.js";
import { KEYS, LEAST, Settings } from "./settings.js";

const $ = (id) => document.getElementById(id);
const THINKS_MS = 600; // without a step for so long, an utterance in progress waits for its last words
const COMPLAINT_MS = 10_000;
const AWAY_MS = 10_000; // a connection that is lost for so long wants somebody to look
const PRIVATE = "private: nothing is kept";
const UNPRIVATE = "No longer private: sentences are kept again";

let hello = null;
let state = null;
let last = null; // the last sentence: { id, entry (its name in the conversation), isKept, text, shown, nbest, rating }
let heard = null; // the last sentence that the voice had, wherever it is now
let forming = null; // number of the utterance that is forming
let connected = "connecting";
let isAway = false;
let away = null; // the timer until then
let refusal = "";
let complaint = "";
let announced = "";
let told = null; // what was announced, a sentence or a turn: its entry

const link = new Link(receive, connection);
const sentence = new Sentence();
const conversation = new Conversation();
const dwell = new Dwell();
const voice = new Voice({ link, complain, view: "participant" });
const alternatives = new Alternatives(choose, () => {
  voice.hold(false); // the best one is said
  show();
});
const settings = new Settings(apply);
const voicePanel = new VoicePanel($("voice-settings"), voice);

// What the server says

function receive(message) {
  const receivers = {
    hello: welcome,
    history,
    step,
    utterance: decided,
    chosen,
    turn,
    forgotten,
    state: changed,
  };
  receivers[message.type]?.(message);
}

function welcome(message) {
  hello = message;
  forming = null;
  setLanguage(message.language);
  voice.greet(message);
  voicePanel.show();
  const wasPrivate = state?.private;
  changed(message);
  if (wasPrivate && !message.private) complain(UNPRIVATE); // a server that was restarted keeps sentences
}

function changed(message) {
  if (state?.private && message.private === false) { // what was private leaves the screen
    conversation.forgetPrivate();
    drop(({ entry }) => typeof entry !== "number");
  }
  state = { ...state, ...message };
  show();
}

let thinking = null;

function step({ utterance, stable, tail }) {
  voice.words(stable, utterance);
  const isNew = utterance !== forming;
  forming = utterance;
  clearTimeout(thinking);
  thinking = setTimeout(() => show((thinking = null)), THINKS_MS);
  const before = document.body.dataset.kind;
  if (stable || tail) {
    if (alternatives.isOpen) alternatives.close(); // the next sentence is there: the best one stands
    if (sentence.kind !== "forming") moveUp();
    sentence.forming(stable, tail);
  }
  if (isNew || before !== "listening") show();
}

// The last sentence joins the conversation; its place is free.
function moveUp() {
  conversation.setCurrent(null);
  if (sentence.kind === "decided") sentence.clear();
  last = null;
}

function decided(utterance) {
  const { id, entry, text, nbest } = utterance, shown = utterance.shown ?? text;
  clearTimeout(thinking);
  thinking = null;
  forming = null;
  if (!text) { // nothing was said: the sentence before it stays
    if (sentence.kind === "forming") sentence.clear();
    return show();
  }
  const isAgain = last?.id === id && last.text === text; // sent again after a connection came back
  const name = isAgain ? last.entry : conversation.add(entry, "participant", shown);
  last = { id, entry: name, isKept: typeof entry === "number", text, shown, nbest, rating: isAgain ? last.rating : null };
  heard = last;
  conversation.setCurrent(name);
  sentence.decided(shown);
  announce(`${id} ${text}`, shown, last);
  if (conversation.isAnswered) moveUp();
  else if (!isAgain && isUnsure(utterance)) offer(false);
  voice.final(utterance);
  show();
}

function history({ entries }) {
  conversation.reset(entries);
  // What was deleted while this page was away is not there any more; the latest sentence follows.
  drop(({ id, entry }) => id !== hello.latest && !entries.some((it) => it.entry === entry));
  if (conversation.isAnswered) moveUp();
  show();
}

function turn({ entry, text }) {
  if (!alternatives.isOpen && forming === null) moveUp();
  const name = conversation.add(entry, "partner", text);
  announce(`turn ${entry}`, `Partner: ${text}`, { entry: name });
  show();
}

function forgotten({ entries }) {
  conversation.forget(entries);
  drop(({ entry }) => entries === null || entries.includes(entry));
  show();
}

// What is gone leaves the screen, the voice and the announcement.
function drop(isGone) {
  if (last && isGone(last)) leave();
  if (told && isGone(told)) announce("", "", null);
  if (!heard || !isGone(heard)) return;
  heard = null;
  voice.forget();
}

// The sentence leaves the screen, and is not said.
function leave() {
  alternatives.hide();
  voice.hold(false, voice.cancel());
  moveUp();
}

// Another candidate is the sentence: here or on another page.
function chosen({ utterance, entry, text, shown }) {
  if (last?.id !== utterance) return typeof entry === "number" && conversation.add(entry, "participant", shown);
  conversation.add(last.entry, "participant", shown);
  if (alternatives.isOpen) {
    alternatives.hide();
    voice.say(shown);
    voice.hold(false);
  }
  take({ text, shown });
  show();
}

function take({ text, shown }) {
  Object.assign(last, { text, shown });
  sentence.decided(shown);
  announce(`${last.id} ${text}`, shown, last);
}

// Each sentence once, though the server sends the last one again when a connection comes back.
function announce(key, text, whose) {
  if (key === announced) return;
  [announced, told] = [key, whose];
  $("announce").textContent = text;
}

function connection(kind, text) {
  if (kind === "away") away ??= setTimeout(() => show((isAway = true)), AWAY_MS);
  else if (kind !== "connecting") {
    clearTimeout(away);
    [away, isAway] = [null, false];
  }
  connected = kind;
  refusal = kind === "refused" ? text : "";
  forming = kind === "open" ? forming : null;
  if (refusal) { // whose access was withdrawn goes on reading nothing
    conversation.forget(null);
    drop(() => true);
    sentence.clear();
  }
  show();
}

// What the person does

const mayRate = () => ["rate", "control"].includes(hello?.rights);
const isUnsure = ({ confidence }) => mayRate() && typeof confidence === "number" && confidence >= LEAST && confidence < settings.below;

function offer(byPerson) {
  const candidates = last && mayRate() ? candidatesOf(last, settings.most) : [];
  if (candidates.length < 2) return;
  voice.hold(true);
  alternatives.open(candidates, byPerson ? 0 : settings.wait, byPerson);
  show();
}

async function choose(candidate) {
  const { id } = last;
  voice.say(candidate.shown);
  voice.hold(false);
  take(candidate);
  show();
  await ask("choose", { utterance: id, text: candidate.text });
}

async function rate(rating) {
  const utterance = last;
  if (!(await ask("rating", { utterance: utterance.id, rating }))) return;
  utterance.rating = rating;
  $("announce").textContent = `Rated ${rating}`;
  show();
  if (rating === "wrong" && utterance === last) offer(true);
}

async function ask(action, body) {
  try {
    await link.post(action, body);
    return true;
  } catch (error) {
    complain(error.message);
    return false;
  }
}

let complaining;

function complain(text) {
  complaint = text;
  clearTimeout(complaining);
  complaining = setTimeout(() => complain(""), COMPLAINT_MS);
  show();
}

// What is shown

// -> [kind, text] of the line of state
function condition() {
  const { kind, text } = voice.state;
  if (connected === "refused") return ["refused", "This page needs a new link. Please ask for one."];
  if (connected !== "open") return ["moment", isAway ? "One moment: no connection" : "One moment"];
  if (complaint) return ["refused", complaint];
  if (kind === "speaking" && forming === null) return ["speaking", "Speaking"];
  if (alternatives.isOpen) return ["ready", "Please choose"];
  if (forming !== null) return thinking === null ? ["thinking", "Thinking"] : ["listening", "Listening"];
  if (kind === "pausing" || kind === "blocked") return ["ready", kind === "blocked" ? "Press a key or touch here for the voice" : text];
  return ["ready", "Ready"];
}

function show() {
  const [kind, text] = condition(), isPrivate = Boolean(state?.private);
  const line = isPrivate && kind !== "refused" ? `${text} \u00b7 ${PRIVATE}` : text;
  $("state").dataset.kind = document.body.dataset.kind = kind;
  $("state").title = refusal;
  if ($("state-text").textContent !== line) $("state-text").textContent = line;
  document.body.dataset.private = isPrivate;
  const decided = connected === "open" && last !== null && forming === null && sentence.kind === "decided", choosing = alternatives.isOpen;
  const isLogged = Boolean(hello?.session_log && last?.isKept);
  const rates = decided && !choosing && mayRate() && isLogged && settings.rate === "on";
  for (const rating of ["right", "wrong"]) {
    offerButton(rating, rates);
    $(rating).ariaPressed = String(last?.rating === rating);
  }
  document.body.dataset.rates = mayRate() && Boolean(hello?.session_log) && settings.rate === "on";
  offerButton("none", choosing);
  offerButton("others", decided && !choosing && mayRate() && candidatesOf(last, 2).length > 1);
  const spoken = voice.state.kind, waits = ["asking", "pausing"].includes(spoken);
  offerButton("hush", spoken === "speaking" || waits, waits ? "Do not say it" : "Stop");
  offerButton("say", waits || (decided && !choosing && spoken === "ready"), waits ? "Say it" : "Say again");
}

function offerButton(id, isThere, text = null) {
  $(id).hidden = $(id).disabled = !isThere;
  if (text && $(id).textContent !== text) $(id).textContent = text;
}

function apply() {
  document.body.dataset.text = settings.talk;
  dwell.time_ms = 1000 * settings.dwell;
  document.body.dataset.dwelling = settings.dwell ? "on" : "off";
  show();
}

voice.onchange = () => show();
$("others").addEventListener("click", () => offer(true));
$("none").addEventListener("click", () => {
  voice.cancel(); // what is none of these is not said
  alternatives.close();
});
$("hush").addEventListener("click", () => voice.stop());
$("say").addEventListener("click", () => (voice.state.waiting === null ? voice.repeat() : voice.go()));
for (const [id, by] of [["settings-up", -0.5], ["settings-down", 0.5]]) // who points with the eyes has no wheel
  $(id).addEventListener("click", () => $("settings-panel").scrollBy(0, by * $("settings-panel").clientHeight));
for (const rating of ["right", "wrong"]) $(rating).addEventListener("click", () => rate(rating));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && alternatives.isOpen && !document.querySelector("#settings-panel:popover-open")) $("none").click();
});
keys(KEYS);
theme(() => {});
fullScreen();
keepAwake();
atRest();
apply();
link.open();
