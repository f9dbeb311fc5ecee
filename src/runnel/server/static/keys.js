// The keyboard: one letter per action, except while text is entered.

// Call actions by key: {"/": function, ...}. "Escape" also works in the search box.
export function listenToKeys(actions) {
  window.document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typing && event.key !== "Escape") return;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
    if (!action) return;
    event.preventDefault();
    action();
  });
}
