// Findings, restarts and the failure on the charts.

const RIBBON = 5; // CSS pixels of height for each span at a chart's top; spans that overlap stand below one another.

/** Tint the spans of *spec* on *u*, behind its lines. */
function tintMarks(u, spec) {
  withinPlot(u, (ctx, box) => {
    for (const { mark, left, right } of visibleMarks(u, spec)) {
      if (mark.end === null || right - left > box.width * 0.6) continue; // Most of the chart would be tinted.
      ctx.fillStyle = faded(colours[mark.tone], 0.1);
      ctx.fillRect(left, box.top, right - left, box.height);
    }
  });
}

/** Draw the marks of *spec* on *u*: a span as a ribbon at the top between dashed lines, a moment as a line with a flag. */
function drawMarks(u, spec) {
  const ratio = devicePixelRatio;
  withinPlot(u, (ctx, box) => {
    const rows = []; // Where the last ribbon of each row ends.
    for (const { mark, left, right } of visibleMarks(u, spec)) {
      const colour = colours[mark.tone];
      ctx.strokeStyle = faded(colour, mark.end === null ? 0.9 : 0.6);
      ctx.fillStyle = colour;
      ctx.lineWidth = (mark.end === null ? 1.5 : 1) * ratio;
      ctx.setLineDash(mark.end === null ? [] : [4 * ratio, 3 * ratio]);
      ctx.beginPath();
      for (const x of mark.end === null ? [left] : [left, right]) {
        ctx.moveTo(x, box.top);
        ctx.lineTo(x, box.top + box.height);
      }
      ctx.stroke();
      if (mark.end === null) {
        flag(ctx, left, box, ratio);
        continue;
      }
      let row = rows.findIndex((end) => end < left);
      if (row < 0) row = rows.length;
      rows[row] = right;
      ctx.fillRect(left, box.top + row * RIBBON * ratio, Math.max(right - left, 2 * ratio), (RIBBON - 1) * ratio);
    }
  });
}

function flag(ctx, x, box, ratio) {
  const side = x > box.left + box.width - 12 * ratio ? -1 : 1;
  ctx.beginPath();
  ctx.moveTo(x, box.top);
  ctx.lineTo(x + side * 9 * ratio, box.top + 4.5 * ratio);
  ctx.lineTo(x, box.top + 9 * ratio);
  ctx.fill();
}

/** The marks of *spec* in the shown span, with the places of their ends on the canvas. */
function visibleMarks(u, spec) {
  const { min, max } = u.scales.x;
  const place = (x) => u.valToPos(Math.max(min - (max - min), Math.min(max + (max - min), x)), "x", true);
  return spec.marks
    .filter((mark) => (mark.end ?? mark.start) >= min && mark.start <= max)
    .map((mark) => ({ mark, left: place(mark.start), right: place(mark.end ?? mark.start) }));
}

function withinPlot(u, draw) {
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  u.ctx.clip();
  draw(u.ctx, u.bbox);
  u.ctx.restore();
}

/** The texts of the marks within *reach* of *x*. */
function marksAt(spec, x, reach) {
  return spec.marks.filter((mark) => x >= mark.start - reach && x <= (mark.end ?? mark.start) + reach).map((mark) => mark.text).filter(Boolean);
}
