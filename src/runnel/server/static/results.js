// The list of results: documents, and below each the sentences that answer. Each is a link to its place.

import { formatAddress } from "./address.js";

// Return an element with a class and content: texts, which are never parsed as HTML, and elements.
export function element(tag, kind, ...content) {
  const made = window.document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...content.filter((one) => one !== null && one !== ""));
  return made;
}

// Show hits: [{id, title, name, sentences: [{start, end, text, score, page, headings, before, after}]}, ...].
export function showResults(list, hits, query) {
  list.replaceChildren(...hits.map((hit) => resultRow(hit, query)));
}

// Mark the sentence that is open.
export function selectResult(list, address) {
  for (const link of list.querySelectorAll("a")) {
    if (link.getAttribute("href") === address) link.setAttribute("aria-current", "true");
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
  const title = element("a", "hit", hit.title || hit.name);
  title.setAttribute("href", formatAddress({ doc: hit.id, query }));
  const name = hit.title && hit.title !== hit.name ? element("span", "name", hit.name) : null;
  const sentences = hit.sentences.map((sentence) => sentenceRow(hit, sentence, query));
  return element("li", "", element("h2", "", title, name ?? ""), ...sentences);
}

function sentenceRow(hit, sentence, query) {
  const link = element("a", sentence.level ? `sentence level-${sentence.level}` : "sentence");
  link.setAttribute("href", formatAddress({ doc: hit.id, query, at: [sentence.start, sentence.end] }));
  link.append(
    element("span", "where", whereOf(sentence)),
    element("span", "around", oneLine(sentence.before), " "),
    element("mark", "", oneLine(sentence.text)),
    element("span", "around", " ", oneLine(sentence.after)),
  );
  return link;
}

// Return the page, the line and the headings of a sentence, and the number of its other places.
export function whereOf({ page, line, headings, also }) {
  const places = also?.length ? `${also.length + 1} places` : "";
  const first = page ? `page ${page}` : line ? `line ${line}` : "";
  return [first, (headings ?? []).join(" › "), places].filter(Boolean).join(" · ");
}

function oneLine(text) {
  return (text ?? "").split(/\s+/).filter(Boolean).join(" ");
}
