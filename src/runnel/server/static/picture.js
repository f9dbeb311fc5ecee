// A page of a PDF as a picture, with boxes around the parts of a sentence. A canvas: no URL for the picture is needed.

const MARGIN = 0.2; // around a line, in heights of the line

// Draw {png, boxes, page}: base64, and [left, top, right, bottom] as shares of the page's size.
export async function showPicture(pane, { png, boxes, page }) {
  const bytes = Uint8Array.from(atob(png), (character) => character.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = pane.querySelector("canvas");
  const { width, height } = picture;
  Object.assign(canvas, { width, height });
  const paper = canvas.getContext("2d");
  paper.drawImage(picture, 0, 0);
  paper.globalCompositeOperation = "multiply"; // as a marker does: the letters stay black
  paper.fillStyle = "#ffd35c";
  for (const [left, top, right, bottom] of boxes) {
    const margin = (bottom - top) * height * MARGIN; // the boxes end where the letters do
    paper.fillRect(left * width - margin, top * height - margin, (right - left) * width + 2 * margin, (bottom - top) * height + 2 * margin);
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Page ${page}, ${boxes.length ? "the sentence is marked" : "the sentence was not found on it"}`);
  canvas.dataset.boxes = boxes.length;
  if (boxes.length) pane.scrollTop = boxes[0][1] * canvas.clientHeight - pane.clientHeight / 3;
}
