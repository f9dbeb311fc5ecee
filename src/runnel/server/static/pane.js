// The pane of a document: its title, its text or the picture of a page, the strip, and the steps between marked sentences.

import { DocumentView } from "./document.js";
import { showPicture } from "./picture.js";
import { countOf, titleOf } from "./results.js";
import { Strip } from "./strip.js";

export class DocumentPane {
  // `page` holds the elements by id, `loadPicture(document, at)` returns a page, `report` is called with errors.
  constructor(page, loadPicture, report) {
    Object.assign(this, { page, loadPicture, report });
    this.view = new DocumentView(page.text);
    this.strip = new Strip(page.strip, this.view);
    this.document = null;
    this.at = null; // the characters of the current sentence
    page.look.addEventListener("click", () => this.toggleLook());
  }

  // Show a document: {id, name, title, text, characters, blocks, pages, pictures}.
  show(loaded) {
    const { page } = this;
    this.document = loaded;
    page.title.textContent = titleOf(loaded);
    const name = titleOf(loaded) === loaded.name ? "" : loaded.name;
    const pages = loaded.pages ? countOf(loaded.pages, "page") : "";
    page.facts.textContent = [name, pages, countOf(loaded.characters, "character")].filter(Boolean).join(" · ");
    page.look.hidden = !loaded.pictures;
    this.setLook(false);
    this.view.show(loaded);
    this.mark(null);
  }

  clear() {
    this.document = this.at = null;
    this.view.clear();
  }

  // Mark the sentences of {sentences, heat, answers}.
  mark(answers) {
    this.view.mark(answers?.sentences ?? [], answers?.answers);
    this.strip.show(answers?.heat ?? []);
  }

  // Show characters [start, end), or no sentence. Return whether the text has them.
  open(at) {
    this.at = at;
    const { current, sentences } = this.view;
    const held = !at || this.view.open(at);
    const number = at ? this.view.current : current;
    this.page.position.textContent = sentences.length ? `${number < 0 ? "–" : number + 1} of ${sentences.length}` : "";
    this.page.previous.disabled = this.page.next.disabled = !sentences.length;
    if (this.looking) this.look();
    return held;
  }

  get looking() {
    return this.page.look.getAttribute("aria-pressed") === "true";
  }

  setLook(on) {
    this.page.look.setAttribute("aria-pressed", String(on));
    this.page.picture.hidden = !on;
    this.page.text.hidden = on;
  }

  // Change between the text and the picture of the page.
  toggleLook() {
    if (this.page.look.hidden) return;
    this.setLook(!this.looking);
    this.open(this.at);
  }

  async look() {
    const { document, at } = this;
    try {
      const picture = await this.loadPicture(document.id, at ?? [0, 1]);
      if (this.document === document && this.at === at) await showPicture(this.page.picture, picture);
    } catch (error) {
      this.setLook(false);
      this.report(error);
    }
  }
}
