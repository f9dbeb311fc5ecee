// The documents of a server: an index, if it has one, and files that were opened here.

import { countOf } from "./results.js";

const OWN = "opened-here:"; // the ids of files that were opened here begin with it

// Connect to the server that sent this page.
export async function connect() {
  const { index } = await (await request("page/about")).json();
  const scope = index ? `in ${index.name}, ${countOf(index.documents, "document")}` : "";
  const ask = index ? "Ask a question: the answer is a sentence of these documents." : "This server has no index.";
  return {
    scope,
    welcome: [
      ask,
      "Drop a file or a folder here, or open one, to ask it: text, Markdown, HTML, PDF, Word or EPUB.",
      "Keys: / question · j k results · n p marked sentences · v page of a PDF · Esc back",
    ],
    owns: (id) => Boolean(id?.startsWith(OWN)),
    search: async (query, signal) => {
      if (!index) throw new Error("This server has no index: open a file to ask it.");
      const options = { method: "POST", body: JSON.stringify({ query }), headers: { "Content-Type": "application/json" }, signal };
      const { documents, answers } = await (await request("v1/search", options)).json();
      return { hits: documents.map((hit) => ({ ...hit, name: hit.id })), answers };
    },
    document: async (id, signal) => (await request(place(id), { signal })).json(),
    answers: async (id, query, signal, progress) =>
      outcome(await request(place(id, "answers", { q: query }), { signal }), progress),
    picture: async (id, [start, end], signal) => (await request(place(id, "picture", { start, end }), { signal })).json(),
    add: async ({ name, file }, progress) => {
      const parameters = new URLSearchParams({ name });
      return outcome(await request(`page/files?${parameters}`, { method: "POST", body: file }), progress);
    },
  };
}

function place(id, what, parameters) {
  return `page/document${what ? `/${what}` : ""}?${new URLSearchParams({ id, ...parameters })}`;
}

// Send a request with the key of this session, if the server wants one. Throw an Error with the server's message if it fails.
async function request(address, options = {}) {
  const key = window.sessionStorage.getItem("key");
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(address, { ...options, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  });
  if (response.ok) return response;
  if (response.status === 401) {
    const given = window.prompt("The key of this server:");
    if (given) {
      window.sessionStorage.setItem("key", given);
      return request(address, options);
    }
  }
  const body = await response.json().catch(() => ({}));
  throw Object.assign(new Error(body.error?.message ?? `The server answered with status ${response.status}.`), {
    loading: response.status === 503,
  });
}

// Read lines of JSON: {done, total} while the model reads, then {result} or {error}.
async function outcome(response, progress) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The server stopped before it had an answer.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map(JSON.parse)) {
      if (line.error) throw new Error(line.error);
      if (line.result) return line.result;
      progress(line);
    }
  }
}
