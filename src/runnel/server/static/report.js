// A report: one file with a query, the results and the documents. Nothing is fetched.

import { start } from "./app.js";

const held = JSON.parse(window.document.getElementById("held").textContent);

start({
  query: held.query,
  scope: held.scope,
  welcome: [],
  owns: () => false,
  search: async () => held,
  document: async (id) => heldDocument(id),
  answers: async (id) => heldDocument(id).answers,
  picture: async (id, [start, end]) => {
    const { boxes, pngs } = heldDocument(id);
    const held = boxes[`${start}-${end}`];
    if (!held) throw new Error("The report has pictures of its results only.");
    return { ...held, png: pngs[held.page] };
  },
});

function heldDocument(id) {
  if (!Object.hasOwn(held.documents, id)) throw new Error("The report does not hold this document.");
  return held.documents[id];
}
