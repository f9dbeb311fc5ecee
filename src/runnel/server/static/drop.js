// Files and folders that are dragged onto the page or chosen from a dialog.

const MOST = 100; // files of what is dropped at once

// Call `open` with the files, each {name, file}, the name of a folder's file with its path; `report` is called with errors. `chooser` is a hidden file input, `button` shows its dialog, `sign` is shown while dragging.
export function listenToFiles({ chooser, button, sign, open, report }) {
  const page = window.document;
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    open([...chooser.files].map((file) => ({ name: file.name, file })));
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
    const held = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    // now: they are gone after this event
    filesOf(held.map((item) => item.webkitGetAsEntry() ?? item.getAsFile())).then(open, report);
  });
}

// Return the files of entries and files, without hidden ones; the files of a folder by name.
async function filesOf(entries, from = "") {
  const files = [];
  for (const entry of entries) {
    const name = from + entry.name;
    if (entry instanceof File) files.push({ name, file: entry });
    else if (entry.isFile) files.push({ name, file: await new Promise((done, failed) => entry.file(done, failed)) });
    else files.push(...(await filesOf(await childrenOf(entry), `${name}/`)));
    if (files.length > MOST) throw new Error(`More than ${MOST} files were dropped; index the folder with runnel index.`);
  }
  return files;
}

async function childrenOf(folder) {
  const reader = folder.createReader();
  const children = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // at most 100 in Chrome
    if (!some.length) break;
    children.push(...some);
  }
  return children.filter(({ name }) => !name.startsWith(".")).sort((a, b) => (a.name < b.name ? -1 : 1));
}
