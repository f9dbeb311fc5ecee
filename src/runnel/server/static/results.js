// The list of results: documents, and below each the sentences that answer. Each is a link to its place.

import { formatAddress } from "./address.js";

// Return an element with a class and content: texts, which are never parsed as HTML, and elements.
export function element(tag, kind, ...content) {
  const made = window.document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...content.filter((one) => one !== ""));
  return made;
}

const LINES = ["txt", "md", "code"]; // kinds of documents whose places are lines

// Show hits: [{id, title, name, sentences}, ...]; the sentences are those of `runnel find --json`.
export function showResults(list, hits, query) {
  list.replaceChildren(...hits.map((hit) => resultRow(hit, query)));
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

function resultRow(hit, query) {
  const title = element("a", "hit", titleOf(hit));
  title.setAttribute("href", formatAddress({ doc: hit.id, query }));
  const name = titleOf(hit) === hit.name ? "" : element("span", "name", hit.name);
  return element("li", "", element("h2", "", title, name), ...hit.sentences.map((sentence) => sentenceRow(hit, sentence, query)));
}

// Return a number of things: "1 page", "2,000 pages".
export function countOf(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

// Return a document's title, or the last part of its name.
export function titleOf({ title, name }) {
  return title || name.split(/[/\\]/).findLast(Boolean) || name;
}

function sentenceRow(hit, sentence, query) {
  const link = element("a", sentence.level ? `sentence level-${sentence.level}` : "sentence");
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

// Return the page or line, the headings and the number of places of a sentence.
function whereOf({ page, line, kind, headings, also, also_omitted: omitted }) {
  const places = also.length ? `${also.length + omitted + 1} places` : "";
  const first = page ? `page ${page}` : LINES.includes(kind) ? `line ${line}` : "";
  return [first, headings.join(" › "), places].filter(Boolean).join(" · ");
}

function oneLine(text) {
  return (text ?? "").split(/\s+/).filter(Boolean).join(" ");
}
