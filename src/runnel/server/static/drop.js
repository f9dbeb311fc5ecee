// Files that are dragged onto the page or chosen from a dialog.

// Call `open` with the files. `chooser` is a hidden file input, `button` shows its dialog, `sign` is shown while dragging.
export function listenToFiles({ chooser, button, sign, open }) {
  const page = window.document;
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    open([...chooser.files]);
    chooser.value = ""; // so that the same file can be chosen again
  });
  page.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    sign.hidden = false;
  });
  page.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) sign.hidden = true;
  });
  page.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    sign.hidden = true;
    open([...event.dataTransfer.files]);
  });
}
