// The language of the decoded texts: where their words end, how they are compared, which way they are read.

let language = { name: "en", lang: "en", direction: "ltr", unit: "word" }; // until the server's hello

export const isOfCharacters = () => language.unit === "character"; // every letter is a word, as in Chinese
export const gap = () => (isOfCharacters() ? "" : " "); // between two words
export const joined = (texts) => texts.join(gap());

export function setLanguage(spoken) {
  language = spoken;
  for (const element of document.querySelectorAll(".said")) said(element);
}

// Marks an element as text of the language, or (own: false) as the page's own English.
export function said(element, own = true) {
  element.classList.add("said");
  element.lang = own ? language.lang : "en";
  element.dir = own ? language.direction : "ltr";
  return element;
}

// Where every letter is a word, marks belong to the letter before them, at the beginning to the one after.
export function words(text) {
  if (!isOfCharacters()) return text.split(/\s+/).filter(Boolean);
  return text.replace(/\s+/g, "").match(/^\P{L}*\p{L}\P{L}*|\p{L}\P{L}*/gu) ?? [];
}

// A decoded text as it is written.
export const written = (text) => (isOfCharacters() ? joined(words(text)) : text);

// A word as it is compared: as the benchmark does in English, else its letters, digits and marks in Unicode NFC.
export function bare(word) {
  if (language.name === "en") return word.toLowerCase().replace(/[^a-z' -]/g, "");
  return word.normalize("NFC").toLowerCase().replace(/[\u2018\u2019\u02bc]/g, "'").replace(/[^\p{L}\p{M}\p{N}'-]/gu, "");
}

export const byAlphabet = (a, b) => a.localeCompare(b, language.lang || undefined);

// A session's recording day as the page's English says it: "t15.2023.08.11" is 11 August 2023; other names stay.
export function inWords(session) {
  const [, year, month, day] = /(\d{4})\.(\d{2})\.(\d{2})$/.exec(session ?? "") ?? [];
  const date = new Date(Date.UTC(year, month - 1, day));
  if (!year || date.getUTCDate() !== Number(day)) return session;
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric", timeZone: "UTC" });
}
