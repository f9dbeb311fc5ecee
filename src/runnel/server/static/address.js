// The state of the page is its address: #doc=ID&q=QUERY&at=START-END, offsets in characters as `runnel find` prints them.

export function parseAddress(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const at = /^(\d{1,15})-(\d{1,15})$/.exec(given.get("at") ?? "");
  return { doc: given.get("doc") || null, query: given.get("q") ?? "", at: at ? [Number(at[1]), Number(at[2])] : null };
}

export function formatAddress({ doc, query, at }) {
  const parts = new URLSearchParams();
  if (doc) parts.set("doc", doc);
  if (query) parts.set("q", query);
  if (doc && at) parts.set("at", `${at[0]}-${at[1]}`);
  return `#${parts}`;
}
