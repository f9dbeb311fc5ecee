// A document as paragraphs of plain text. Sentences are marked by painted ranges, so that the text is never parsed or changed.

import { countBelow, unitOffsets } from "./offsets.js";
import { STRONGEST, WEAKEST, levelOf, placesOf } from "./results.js";

const FULL_LINE = 45; // characters: shorter lines were broken on purpose
const LINE_CHARS = 70; // about as many are shown per line; to estimate the height of paragraphs that are not laid out yet

export class DocumentView {
  constructor(pane) {
    this.pane = pane;
    this.clear();
  }

  clear() {
    for (const name of CSS.highlights?.keys() ?? []) CSS.highlights.delete(name);
    this.pane.replaceChildren();
    this.starts = []; // of the paragraphs, in UTF-16 units
    this.sentences = []; // marked, in document order: {at, units, level}
    this.current = -1;
  }

  // Show a document: {text, blocks: [[start, end, kind, page], ...]}.
  show({ text, blocks }) {
    this.clear();
    this.source = text;
    this.units = unitOffsets(text);
    const rows = blocks.map(([start, end, kind]) => {
      const from = this.units(start);
      const row = window.document.createElement("p");
      row.textContent = text.slice(from, this.units(end));
      row.className = `${kind} ${lineStyle(row.textContent, kind)}`;
      row.style.containIntrinsicBlockSize = `auto ${1.6 * Math.ceil(row.textContent.length / LINE_CHARS)}em`;
      this.starts.push(from);
      return row;
    });
    this.pane.replaceChildren(...rows);
    this.pane.scrollTop = 0;
  }

  // Mark sentences and their repetitions by level; `answers` is the probability that one of them answers.
  mark(sentences, answers) {
    const places = sentences.flatMap((one) => placesOf(one).map((at) => ({ at, level: levelOf(one, answers) })));
    this.sentences = places.sort((a, b) => a.at[0] - b.at[0]).map((one) => ({ ...one, units: this.trimmed(...one.at) }));
    this.current = -1;
    if (!window.CSS.highlights) return;
    CSS.highlights.delete("current");
    for (let level = WEAKEST; level <= STRONGEST; level++) {
      const ranges = this.sentences.filter((one) => one.level === level).map((one) => this.range(...one.units));
      CSS.highlights.set(`level-${level}`, new Highlight(...ranges.filter(Boolean)));
    }
  }

  // Scroll to characters [start, end) and mark them as the current sentence. Return whether they are in the text.
  open([start, end]) {
    const range = this.range(...this.trimmed(start, end));
    this.current = this.sentences.findIndex(({ at }) => at[0] === start);
    if (!range) return false;
    if (window.CSS.highlights) {
      const current = new Highlight(range);
      current.priority = 1;
      CSS.highlights.set("current", current);
    }
    this.center(range);
    return true;
  }

  // Return the offsets of the next marked sentence (or, with -1, the one before), from the current one or from the top.
  neighbor(step) {
    const { length } = this.sentences;
    if (!length) return null;
    const from = this.current < 0 && step < 0 ? 0 : this.current;
    return this.sentences[(from + step + length) % length].at;
  }

  // Scroll to a place between the start of the text, 0, and its end, 1.
  scrollToShare(share) {
    const at = Math.max(0, countBelow(this.starts, share * this.source.length + 1) - 1);
    this.pane.children[at]?.scrollIntoView({ block: "start" });
  }

  // Return the part of the text in sight, as shares of its length.
  sight() {
    const box = this.pane.getBoundingClientRect();
    const rows = this.pane.children;
    if (!rows.length) return [0, 0];
    const first = this.rowAt(box.top);
    const last = this.rowAt(box.bottom);
    const length = Math.max(1, this.source.length);
    return [this.shareAt(first, box.top) / length, this.shareAt(last, box.bottom) / length];
  }

  rowAt(y) {
    let [low, high] = [0, this.pane.children.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pane.children[middle].getBoundingClientRect().bottom < y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  shareAt(row, y) {
    const box = this.pane.children[row].getBoundingClientRect();
    const inside = Math.min(1, Math.max(0, (y - box.top) / Math.max(1, box.height)));
    return this.starts[row] + inside * this.pane.children[row].textContent.length;
  }

  // Return a range over UTF-16 units [from, to) of the text; null if nothing of it is shown.
  range(from, to) {
    const first = Math.max(0, countBelow(this.starts, from + 1) - 1);
    const last = Math.max(first, countBelow(this.starts, to) - 1);
    const [head, tail] = [first, last].map((row) => this.pane.children[row]?.firstChild);
    if (!head || !tail || from >= to) return null;
    const range = new Range();
    range.setStart(head, Math.min(head.length, Math.max(0, from - this.starts[first])));
    range.setEnd(tail, Math.min(tail.length, Math.max(0, to - this.starts[last])));
    return range.collapsed ? null : range;
  }

  // Return characters [start, end) in UTF-16 units, without the whitespace around the sentence.
  trimmed(start, end) {
    const [from, to] = [this.units(start), this.units(end)];
    const text = this.source.slice(from, to);
    return [from + text.length - text.trimStart().length, to - text.length + text.trimEnd().length];
  }

  // Scroll the range to a third of the pane's height. Twice, because paragraphs that come into sight change their height.
  center(range) {
    const row = range.startContainer.parentElement;
    row.scrollIntoView({ block: "center" });
    const adjust = () => {
      const [box, pane] = [range.getBoundingClientRect(), this.pane.getBoundingClientRect()];
      this.pane.scrollTop += box.top - pane.top - pane.height / 3;
    };
    adjust();
    requestAnimationFrame(() => {
      adjust();
      requestAnimationFrame(adjust);
    });
  }
}

// Return how the lines of a paragraph are shown: prose is set anew, other lines are kept, columns also keep their width.
function lineStyle(text, kind) {
  const lines = text.split("\n");
  if (lines.length === 2 && /^\s*([^\w\s])\1{2,}\s*$/.test(lines[1])) return "lines heading"; // underlined
  if (kind === "code" || /\n {2,}\S|\S {3,}\S|\t/.test(text)) {
    const prose = lines.length > 1 && lines.slice(0, -1).every((line) => line.trim().length >= FULL_LINE);
    return prose && kind !== "code" ? "prose" : "columns";
  }
  return lines.slice(0, -1).every((line) => line.trim().length >= FULL_LINE) ? "prose" : "lines";
}
