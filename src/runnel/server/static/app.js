// The page: it shows what its address says, and every action changes the address.

import { formatAddress, parseAddress } from "./address.js";
import { listenToFiles } from "./drop.js";
import { listenToKeys } from "./keys.js";
import { DocumentPane } from "./pane.js";
import { countOf, element, selectResult, showResults, stepResult, unanswered } from "./results.js";

const ERRORS = 3; // the most to show, of files that cannot be read

// Start the page on a source of documents: the server (server.js), or what a report holds (report.js).
export function start(source) {
  const page = Object.fromEntries([...window.document.querySelectorAll("[id]")].map((one) => [one.id, one]));
  const pane = new DocumentPane(page, source.picture, report);
  let shown = { doc: null, query: null, at: null };
  let answers = null; // the sentences of the open document that answer, best first
  const opened = new Map(); // names of the files that were opened here, by id
  let collection = { hits: [] }; // what was found in all of it, and the probability that it answers at all
  let ownHits = []; // of the open document, if it is a file that was opened here
  let listed = null; // the hits in the list
  let searched = ""; // the query of `collection`
  let asked = ""; // the query that the collection was asked last, answered or not
  let work = new AbortController(); // for what is being loaded

  function go(change, replace = false) {
    const address = formatAddress({ ...shown, ...change });
    if (replace) window.history.replaceState(null, "", address);
    else window.history.pushState(null, "", address);
    return follow();
  }

  async function follow() {
    const before = shown;
    const address = parseAddress(window.location.hash);
    shown = { ...address, query: source.query ?? address.query };
    if (shown.doc === before.doc && shown.query === before.query) return openSentence();
    showOpened();
    work.abort();
    work = new AbortController();
    const { signal } = work;
    page.query.value = shown.query;
    window.document.title = [shown.query, "runnel"].filter(Boolean).join(" · ");
    say(shown.query ? "Searching…" : "");
    try {
      await Promise.all([search(signal), read(signal)]);
      if (signal.aborted) return;
      say(countText(listResults()));
      openSentence();
    } catch (error) {
      if (!signal.aborted) report(error);
    } finally {
      if (!signal.aborted) page.progress.hidden = true;
    }
  }

  // Search the collection, unless a file that was opened here is asked instead.
  async function search(signal) {
    page.welcome.hidden = Boolean(shown.query || shown.doc);
    if (source.owns(shown.doc)) return;
    asked = shown.query;
    if (asked === searched) return;
    const found = shown.query ? await source.search(shown.query, signal) : { hits: [] };
    if (signal.aborted) return;
    [collection, searched] = [found, shown.query];
    listResults();
  }

  // Show the document and mark its sentences that answer.
  async function read(signal) {
    const { doc, query } = shown;
    [answers, ownHits] = [null, []];
    page.document.hidden = !doc;
    window.document.body.classList.toggle("reading", Boolean(doc));
    if (!doc) pane.clear();
    page.scope.textContent = scopeText();
    if (!doc) return;
    const scoring = query ? source.answers(doc, query, signal, showProgress) : null;
    scoring?.catch(() => {}); // awaited below, unless the document fails first
    if (pane.document?.id !== doc) {
      const loaded = await source.document(doc, signal);
      if (signal.aborted) return;
      pane.show(loaded);
      page.scope.textContent = scopeText();
    }
    const found = await scoring;
    if (signal.aborted) return;
    answers = found;
    ownHits = answers ? [{ ...pane.document, sentences: answers.sentences }] : [];
    pane.mark(answers);
  }

  // Show the results, and return them: of the file that was opened here, or of the collection.
  function listResults() {
    const own = source.owns(shown.doc);
    const list = own ? ownHits : collection.hits;
    if (list !== listed) showResults(page.results, list, shown.query, (own ? answers : collection)?.answers);
    listed = list;
    return list;
  }

  function countText(list) {
    if (!shown.query) return "";
    const count = list.reduce((sum, hit) => sum + hit.sentences.length, 0);
    if (!count && !list.length) return "Nothing found.";
    const sentences = countOf(count, "sentence");
    const own = source.owns(shown.doc);
    const said = unanswered((own ? answers : collection).answers) ? "Nothing here seems to answer this. " : "";
    if (own) return `${said}${sentences} of ${answers.count.toLocaleString("en")}`;
    return `${said}${sentences} in ${countOf(list.length, "document")}`;
  }

  // Open the sentence of the address, or the best one of the document.
  function openSentence() {
    if (!pane.document || pane.document.id !== shown.doc) return;
    const best = answers?.sentences[0];
    const at = shown.at ?? (best ? [best.start, best.end] : null);
    selectResult(page.results, shown.doc, at?.[0]);
    if (!pane.open(at)) report(new Error(`The document has no characters ${at[0]}-${at[1]}.`));
  }

  function step(by) {
    const at = pane.document && pane.view.neighbor(by);
    if (at) go({ at }, true);
  }

  // Close the document. The collection is not asked what only a file that was opened here was asked.
  function close() {
    if (window.document.activeElement === page.query) return page.query.blur();
    if (!shown.doc) return;
    const link = page.results.querySelector("a[aria-current]");
    go({ doc: null, at: null, query: source.owns(shown.doc) ? asked : shown.query });
    link?.focus();
  }

  function showProgress({ done, total }) {
    page.progress.hidden = false;
    if (total) Object.assign(page.progress, { max: total, value: done });
    else page.progress.removeAttribute("value");
  }

  function say(text) {
    page.status.classList.remove("error");
    page.status.textContent = text;
  }

  function report(error) {
    say(error.message);
    page.status.classList.add("error");
  }

  // Open files, each {name, file}; show the first that can be read, and report the files that cannot be read.
  async function openFiles(files) {
    const errors = [];
    let going = null;
    for (const [number, one] of files.entries()) {
      say(`Reading ${one.name}${files.length > 1 ? ` (${number + 1} of ${files.length})` : ""}…`);
      showProgress({ done: 0, total: null });
      try {
        const { id } = await source.add(one, showProgress);
        opened.set(id, one.name);
        going ??= go({ doc: id, at: null });
        showOpened();
      } catch (error) {
        errors.push(error.message);
      } finally {
        page.progress.hidden = true;
      }
    }
    await going;
    say(files.length ? countText(listResults()) : "The folder has no files.");
    const more = errors.splice(ERRORS).length;
    if (errors.length) report(new Error(errors.join("; ") + (more ? `; and ${more} more` : "")));
  }

  // Show links to all files that were opened here.
  function showOpened() {
    const links = [...opened].map(([doc, name]) => {
      const link = element("a", "", name);
      link.setAttribute("href", formatAddress({ doc, query: shown.query }));
      if (doc === shown.doc) link.setAttribute("aria-current", "page");
      return link;
    });
    page.opened.replaceChildren(...links);
  }

  function scopeText() {
    if (!source.owns(shown.doc)) return source.scope;
    return pane.document?.id === shown.doc ? `in ${pane.document.name}` : "";
  }

  page.search.addEventListener("submit", (event) => {
    event.preventDefault();
    if (source.query) return;
    page.query.blur();
    go({ query: page.query.value.trim(), at: null, doc: source.owns(shown.doc) ? shown.doc : null });
  });
  page.close.addEventListener("click", close);
  page.next.addEventListener("click", () => step(1));
  page.previous.addEventListener("click", () => step(-1));
  window.addEventListener("popstate", follow); // also after a click on a link to another address of the page
  listenToKeys({
    "/": () => (page.query.focus(), page.query.select()),
    j: () => stepResult(page.results, 1),
    k: () => stepResult(page.results, -1),
    n: () => step(1),
    p: () => step(-1),
    v: () => pane.toggleLook(),
    Escape: close,
  });
  if (source.add) listenToFiles({ chooser: page.file, button: page.choose, sign: page.drop, open: openFiles, report });
  else page.choose.hidden = true;
  page.query.disabled = false;
  page.query.readOnly = Boolean(source.query);
  page.welcome.append(...source.welcome.map((text) => element("p", "", text)));
  follow();
}
