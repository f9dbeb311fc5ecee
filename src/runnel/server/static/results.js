// The list of results: documents, and below each the sentences that answer. Each is a link to its place.

import { formatAddress } from "./address.js";

// Return an element with a class and content: texts, which are never parsed as HTML, and elements.
export function element(tag, kind, ...content) {
  const made = window.document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...content.filter((one) => one !== ""));
  return made;
}

const UNLIKELY = 0.15; // the probability below which nothing seems to answer
const LEVELS = [0.15, 0.25, 0.35, 0.45]; // of color: the probability from which a sentence has it
export const WEAKEST = 1; // also of the sentences of a model without probabilities
export const STRONGEST = LEVELS.length;

// Return whether nothing seems to answer, from the probability that something does (null: it is not known).
export function unanswered(answers) {
  return (answers ?? 1) < UNLIKELY;
}

// Return the level of a sentence, from 1 to 4; 0 if it is improbable, or nothing seems to answer.
export function levelOf(sentence, answers) {
  if (unanswered(answers)) return 0;
  return sentence.answers === null ? WEAKEST : LEVELS.filter((least) => sentence.answers >= least).length;
}

const LINES = ["txt", "md", "code"]; // kinds of documents whose places are lines

// Show hits: [{id, title, name, sentences}, ...]; the sentences are those of `runnel find --json`, `answers` is the
// probability that one of them answers.
export function showResults(list, hits, query, answers) {
  list.replaceChildren(...hits.map((hit) => resultRow(hit, query, answers)));
}

// Mark the sentence of a document that begins at `start`, or is equal to the one that does.
export function selectResult(list, doc, start) {
  for (const link of list.querySelectorAll("a.sentence")) {
    if (link.doc === doc && link.starts.includes(start)) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

// Focus the next link to a sentence (or, with -1, the one before).
export function stepResult(list, step) {
  const links = [...list.querySelectorAll("a.sentence")];
  const at = links.indexOf(window.document.activeElement);
  const from = at >= 0 ? at : links.findIndex((link) => link.hasAttribute("aria-current"));
  links[Math.min(links.length - 1, Math.max(0, from + step))]?.focus();
}

function resultRow(hit, query, answers) {
  const title = element("a", "hit", titleOf(hit));
  title.setAttribute("href", formatAddress({ doc: hit.id, query }));
  const name = titleOf(hit) === hit.name ? "" : element("span", "name", hit.name);
  return element("li", "", element("h2", "", title, name), ...hit.sentences.map((one) => sentenceRow(hit, one, query, answers)));
}

// Return a number of things: "1 page", "2,000 pages".
export function countOf(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

// Return a document's title, or the last part of its name.
export function titleOf({ title, name }) {
  return title || name.split(/[/\\]/).findLast(Boolean) || name;
}

function sentenceRow(hit, sentence, query, answers) {
  const level = levelOf(sentence, answers);
  const link = element("a", level ? `sentence level-${level}` : "sentence");
  link.setAttribute("href", formatAddress({ doc: hit.id, query, at: [sentence.start, sentence.end] }));
  Object.assign(link, { doc: hit.id, starts: placesOf(sentence).map(([start]) => start) });
  link.append(
    element("span", "where", whereOf(sentence)),
    element("span", "around", oneLine(sentence.before), " "),
    element("mark", "", oneLine(sentence.table_row || sentence.text)),
    element("span", "around", " ", oneLine(sentence.after)),
  );
  return link;
}

// Return the [start, end) of a sentence and of its repetitions in the same document.
export function placesOf(sentence) {
  const here = sentence.also.filter(({ file, id }) => file === sentence.file && id === sentence.id);
  return [sentence, ...here].map(({ start, end }) => [start, end]);
}

// Return the probability, the page or line, the headings and the number of places of a sentence.
function whereOf({ answers, page, line, kind, headings, also, also_omitted: omitted }) {
  const places = also.length ? `${also.length + omitted + 1} places` : "";
  const first = page ? `page ${page}` : LINES.includes(kind) ? `line ${line}` : "";
  return [percentOf(answers), first, headings.join(" › "), places].filter(Boolean).join(" · ");
}

// Return a probability as the commands write it; "" if it is not known.
function percentOf(share) {
  if (share === null) return "";
  const rounded = Math.round(100 * share);
  if (rounded < 1) return "under 1 %";
  return rounded > 99 ? "over 99 %" : `${rounded} %`;
}

function oneLine(text) {
  return (text ?? "").split(/\s+/).filter(Boolean).join(" ");
}
