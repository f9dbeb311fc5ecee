// The heat strip: the relevance of the whole document from top to bottom, and the part in sight. A click scrolls there.

export class Strip {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    this.heat = [];
    this.waiting = false;
    const draw = () => this.draw();
    new ResizeObserver(draw).observe(canvas);
    view.pane.addEventListener("scroll", draw, { passive: true });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    for (const kind of ["pointerdown", "pointermove"]) {
      canvas.addEventListener(kind, (event) => {
        if (event.buttons) view.scrollToShare(event.offsetY / canvas.clientHeight);
      });
    }
  }

  // Show relevance: numbers from 0 to 1, one per equal part of the text.
  show(heat) {
    this.heat = heat;
    this.draw();
  }

  // Draw in the next frame, once however often this was called.
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { canvas } = this;
    const scale = window.devicePixelRatio;
    const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
    if (!width || !height) return;
    Object.assign(canvas, { width, height });
    const colors = getComputedStyle(canvas);
    const paper = canvas.getContext("2d");
    const [top, bottom] = this.view.sight();
    paper.fillStyle = colors.getPropertyValue("--sight");
    paper.fillRect(0, top * height, width, Math.max(2 * scale, (bottom - top) * height));
    paper.fillStyle = colors.getPropertyValue("--heat");
    const part = height / Math.max(1, this.heat.length);
    this.heat.forEach((heat, number) => {
      if (heat <= 0) return;
      paper.globalAlpha = 0.15 + 0.85 * heat;
      const thick = Math.max(2 * scale, part);
      paper.fillRect(width * 0.5 * (1 - heat) * 0.8, number * part, width * (1 - (1 - heat) * 0.8), thick);
    });
    paper.globalAlpha = 1;
  }
}
