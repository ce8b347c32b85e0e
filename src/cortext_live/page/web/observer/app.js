// cortext, live: what the server says is shown, what a person asks for is sent. The protocol is in docs/reference/web-socket.md.

import { Conversation } from "./conversation.js";
import { Devices } from "./devices.js";
import { Drift } from "./drift.js";
import { Editor } from "./editor.js";
import { Gate } from "./gate.js";
import { inWords, isOfCharacters, said, setLanguage, written } from "../language.js";
import { Link, WITHDRAWN } from "../link.js";
import { ms, showCandidates, showLatency, showStats } from "./panels.js";
import { Sentence } from "./sentence.js";
import { keys, theme } from "../preferences.js";
import { Hotwords, KEYS, Options, Source } from "./settings.js";
import { Timeline, weights } from "./timeline.js";
import { Voice } from "../voice.js";
import { VoiceBar } from "./voice_bar.js";
import { VoicePanel } from "../voice_panel.js";

const $ = (id) => document.getElementById(id);

const MOST_NAMES = 10; // of groups beside a strip; there is no room for more

let timeline = null;
let hello = null;
let state = null;
let current = null; // id of the utterance that is forming
let last = null; // the last that was decided
let heard = null; // the last with words, also from before the connection came back: the page and its voice have them
let announced = ""; // the one that a screen reader was told last

const sentence = new Sentence();
const editor = new Editor(async (utterance, text) => {
  const kept = await ask("correction", { utterance: utterance.id, text });
  if (!kept) return false;
  say("Correction saved");
  if (last === utterance) corrected(text);
  return true;
});
const source = new Source();
const options = new Options(ask);
const hotwords = new Hotwords(ask);
const gate = new Gate(ask);
const link = new Link(receive, connection);
new Devices(link);
const conversation = new Conversation(link, say);
const voice = new Voice({ link, complain });
const voicePanel = new VoicePanel($("voice-settings"), voice);
new VoiceBar(voice);
const drift = new Drift((name) => link.get(name));

function complain(text) {
  $("alert").hidden = !text;
  $("alert-text").textContent = text;
}

function say(text) {
  $("announce").textContent = text;
}

async function ask(action, body) {
  try {
    await link.post(action, body);
    complain("");
    return true;
  } catch (error) {
    complain(error.message);
    return false;
  }
}

function connection(kind, text) {
  $("link").dataset.link = kind;
  $("link-text").textContent = text;
  if (kind === "refused" && hello) withdraw();
  if (kind === "refused")
    complain(text === WITHDRAWN ? `${text}.` : `${text}. Open the address that cortext serve printed; it ends in #token=\u2026`);
  else if (kind === "open") complain("");
  enable();
}

const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

// Shows a message that changes the conversation, too.
const talk = (show) => (message) => {
  show(message);
  conversation.changed();
};

function receive(message) {
  const receivers = {
    hello: welcome,
    history: talk(history),
    step,
    utterance: talk(decided),
    chosen: talk(chosen),
    turn: talk(() => {}),
    forgotten: talk(forgotten),
    stats,
    state: changed,
    error: ({ what }) => complain(what),
  };
  receivers[message.type]?.(message);
}

function welcome(message) {
  hello = message;
  for (const part of $("judge").querySelectorAll(".together, #correct")) part.hidden = !message.session_log;
  $("judge-off").hidden = message.session_log;
  $("latency-note").textContent = `median, 99th percentile; limit ${message.budget_ms}\u202fms`;
  source.show(message.source);
  setLanguage(message.language);
  voice.greet(message);
  voicePanel.show();
  describe(message);
  timeline?.end();
  timeline = makeTimeline(message);
  current = last = null; // numbers of utterances begin anew with the server, which sends the last one again
  const wasPrivate = state?.private;
  changed(message);
  judge();
  if (wasPrivate && !message.private) complain("No longer private: sentences are kept again"); // after a restart of the server
}

// What decodes, in words.
function showAbout({ run, lm, llm, version }) {
  const facts = [["model", run], ["day", inWords(state.day)], ["language model", lm], ["large model", llm], ["cortext", version]];
  $("about").textContent = facts.filter(([, value]) => value).map((pair) => pair.join(" ")).join(", ");
}

// The texts that the model's tokens and its times decide.
function describe({ unit, bin_ms, frame_ms }) {
  const isPhoneme = unit === "phoneme";
  $("features-note").textContent = `one column every ${bin_ms}\u202fms`;
  $("tokens-name").textContent = isPhoneme ? "Phonemes" : "Characters";
  $("tokens-note").textContent = `probability of each ${isPhoneme ? "speech sound" : unit}, one column every ${frame_ms}\u202fms`;
  $("phonemes-names").ariaLabel = `Kinds of ${unit}s`;
  $("phonemes").ariaLabel = `Probability of each ${unit} over the last seconds`;
  $("marks").ariaLabel = `The most likely ${unit}s, the words and the time`;
}

function makeTimeline({ arrays, n_features, tokens, groups, separator, bin_ms, frame_ms }) {
  const range = ([first, end]) => Array.from({ length: end - first + 1 }, (_, i) => first + i);
  const features = arrays.map(({ name, columns }) => ({ name, rows: range(columns) }));
  const phonemes = groups.map(({ name, tokens: rows }) => ({ name, rows }));
  const spoken = new Set(groups.flatMap((group) => group.tokens)); // the blank is in no group
  const symbols = tokens.map((symbol, i) => (spoken.has(i) && i !== separator ? symbol : null));
  label($("features-names"), features);
  label($("phonemes-names"), phonemes);
  const canvases = { features: $("features"), phonemes: $("phonemes"), marks: $("marks") };
  return new Timeline(canvases, features, n_features, phonemes, symbols, { bin_ms, frame_ms });
}

function label(list, groups) {
  const heights = weights(groups);
  list.replaceChildren(...groups.map(({ name }, i) => {
    const item = document.createElement("li");
    item.textContent = groups.length > MOST_NAMES ? "" : name;
    item.title = name;
    item.style.flexGrow = heights[i];
    return item;
  }));
}

function begin(id) {
  current = id;
  timeline.begin();
  sentence.begin(state.reference);
  judge();
}

function step(message) {
  voice.words(message.stable, message.utterance);
  if (message.utterance !== current) begin(message.utterance);
  const until = Math.round(message.t_ms / hello.bin_ms); // bins of 12.5 or 33.3 ms leave no whole milliseconds
  timeline.addBins(bytes(message.bins), message.n_bins, until);
  if (message.dropped) timeline.resume(until, message.n_frames);
  timeline.addFrames(bytes(message.posteriors), message.n_frames);
  if (!sentence.forming(message.stable, message.tail, message.t_ms)) return;
  showTrial();
  judge();
}

function decided(utterance) {
  voice.final(utterance);
  if (utterance.id === current) timeline.addWords(utterance.words);
  current = null;
  last = { ...utterance, rating: null };
  if (utterance.text) heard = last;
  sentence.decided(utterance);
  showCandidates(utterance.nbest, (text) => editor.open(last, text));
  if (utterance.error) complain(utterance.error);
  announce(utterance);
  showTrial();
  judge();
}

// The correction stands beside its sentence, wherever that is now.
function corrected(text) {
  last.correction = text;
  if (sentence.stands) sentence.corrected(text);
  judge();
}

// Somebody chose another candidate: it stands as a correction does.
function chosen({ utterance, shown }) {
  if (last?.id === utterance) corrected(shown);
}

// What was deleted while this page was away is not there any more; the latest sentence follows.
function history({ entries }) {
  drop(({ id, entry }) => id !== hello.latest && !entries.some((it) => it.entry === entry));
}

// Sentences were deleted (null: all).
function forgotten({ entries }) {
  drop(({ entry }) => !entries || entries.includes(entry));
}

// Sentences that are gone leave every part of the page, and its voice.
function drop(isGone) {
  if (editor.utterance && isGone(editor.utterance)) editor.close();
  if (![last, heard].some((it) => it && isGone(it))) return;
  last = heard = null;
  announced = "";
  say("");
  $("nbest").replaceChildren();
  voice.forget();
  timeline.end();
  timeline = makeTimeline(hello);
  if (sentence.stands) sentence.waiting("Deleted");
  showTrial();
  judge();
}

// Whose access was withdrawn goes on reading nothing.
function withdraw() {
  current = null;
  drop(() => true);
  timeline.end();
  timeline = makeTimeline(hello);
  sentence.waiting("");
  conversation.clear();
}

// Each sentence once: the server sends the last one again when the connection comes back.
function announce(utterance) {
  const received = JSON.stringify(utterance);
  if (received === announced) return;
  announced = received;
  say(utterance.text ? `Decoded: ${written(utterance.text)}` : "No words");
}

// Whose sentence it is, and the day's layer where that is another one's.
function showTrial() {
  const id = state.state === "running" && !sentence.stands ? state.trial : last?.trial;
  const trial = source.trials.find((it) => it.id === id);
  const day = trial?.session === state.day ? null : `decoded with the day layer of ${state.day}`;
  const model = state.model && `model ${state.model}`;
  $("now").textContent = [trial && `${trial.session}, block ${trial.block}, trial ${trial.trial}`, day, model].filter(Boolean).join(" \u00b7 ");
}

// A decoded sentence within the page's own English.
function quoted(text) {
  const sentence = said(document.createElement("bdi"));
  sentence.textContent = `\u201c${written(text)}\u201d`;
  return sentence;
}

// What the large model had to do with a sentence; nothing where there is none, or it failed.
function ranking({ text, ngram_text, degraded }) {
  if (degraded) return null;
  if (ngram_text === null || ngram_text === undefined) return null;
  if (ngram_text === text) return "the large model agrees";
  return ["chosen by the large model; the n-gram\u2019s choice was ", ngram_text ? quoted(ngram_text) : "\u201c(no words)\u201d"];
}

// What the buttons for rating and correcting are about; it stays in view while the next sentence forms.
function judge() {
  const unit = isOfCharacters() ? "character" : "word";
  const facts = last && [
    sentence.stands ? null : [quoted(last.text)],
    sentence.stands || !last.correction ? null : ["corrected to ", quoted(last.correction)],
    last.wer === null ? null : `${unit} error rate ${Math.round(100 * last.wer)}\u2009%`,
    `${last.duration_s.toFixed(1)}\u2009s`,
    last.words_per_minute ? `${Math.round(last.words_per_minute)} ${unit}s per minute` : null,
    last.latency_ms === null ? null : `text ${ms(last.latency_ms)}\u2009ms after the end`,
    ranking(last),
    last.model && last.model !== state.model ? `model ${last.model}` : null,
  ];
  const told = (facts ?? []).filter(Boolean).flatMap((fact, i) => [i ? " \u00b7 " : "", ...[fact].flat()]);
  const lacking = Object.assign(document.createElement("span"), { className: "degraded", textContent: last?.degraded ?? "" });
  $("judged").replaceChildren(...told, ...(last?.degraded ? [" \u00b7 "] : []), lacking);
  for (const button of document.querySelectorAll("[data-rating]"))
    button.ariaPressed = String(last?.rating === button.dataset.rating);
  enable();
}

function stats(message) {
  showStats(message);
  showLatency(message.latency, message.final_ms, hello.budget_ms);
}

function changed(message) {
  const { session } = state ?? {};
  state = { ...state, ...message };
  if (state.session && state.session !== session) source.choose(state.session);
  showAbout(hello);
  showTrial();
  const running = state.state === "running";
  $("run-text").textContent = running ? "Stop" : "Start";
  document.body.dataset.state = state.state;
  document.title = running ? "cortext \u00b7 decoding" : "cortext";
  options.show(state, hello);
  hotwords.show(state.hotwords, state.hotword_spelling);
  gate.show(state, hello);
  conversation.show(state, hello);
  if (running && current === null) sentence.expect(state.reference);
  else if (!last && !running) sentence.waiting(hello.can_control ? "Ready" : "Waiting for a sentence");
  enable();
}

function enable() {
  const open = $("link").dataset.link === "open" && hello?.can_control;
  const fed = hello?.source.kind === "feed"; // runs when its frames come
  $("run").disabled = !open || (fed && state?.state !== "running");
  for (const id of ["previous", "next", "session", "trial", "devices", "hotwords", "options", "conversation"]) $(id).disabled = !open;
  $("drift").disabled = !open || !hello.session_log;
  for (const button of [...document.querySelectorAll("[data-rating]"), $("correct")]) button.disabled = !open || !last || last.private;
  document.body.classList.toggle("watching", Boolean(hello && !hello.can_control));
}

$("run").addEventListener("click", () =>
  state.state === "running" ? ask("stop") : ask("start", source.choice(state)));
$("previous").addEventListener("click", () => source.move(-1));
$("next").addEventListener("click", () => source.move(1));
$("correct").addEventListener("click", () => editor.open(last, last.text));
$("alert-close").addEventListener("click", () => complain(""));
for (const button of document.querySelectorAll("[data-rating]"))
  button.addEventListener("click", async () => {
    const { rating } = button.dataset, utterance = last;
    if (!(await ask("rating", { utterance: utterance.id, rating }))) return;
    utterance.rating = rating;
    say(`Rated ${rating}`);
    judge();
  });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector(":popover-open")) complain("");
});

// The participant's view is opened with the same token.
const lead = () => ($("participant").hash = location.hash);
addEventListener("hashchange", lead);
lead();
keys(KEYS);
theme(() => {
  timeline?.fit();
  drift.draw();
});
link.open();
