// Findings, restarts and the failure on the charts.

/** Draw the marks of *spec* on *u*: a span as a tinted field, a moment as a line with a flag at its top. */
function drawMarks(u, spec) {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  const [min, max] = [u.scales.x.min, u.scales.x.max];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const mark of spec.marks) {
    const end = mark.end ?? mark.start;
    if (end < min || mark.start > max) continue;
    const colour = colours[mark.tone];
    const left = u.valToPos(mark.start, "x", true), right = u.valToPos(end, "x", true);
    if (mark.end !== null) {
      ctx.fillStyle = faded(colour, 0.12);
      ctx.fillRect(left, bbox.top, Math.max(right - left, ratio), bbox.height);
    }
    ctx.strokeStyle = faded(colour, 0.9);
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash(mark.end === null ? [] : [4 * ratio, 3 * ratio]);
    ctx.beginPath();
    for (const x of mark.end === null ? [left] : [left, right]) {
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
    if (mark.end === null) {
      const side = right > bbox.left + bbox.width - 12 * ratio ? -1 : 1;
      ctx.fillStyle = colour;
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left + side * 9 * ratio, bbox.top + 4.5 * ratio);
      ctx.lineTo(left, bbox.top + 9 * ratio);
      ctx.fill();
    }
  }
  ctx.restore();
}

/** The texts of the marks within *reach* of *x*. */
function marksAt(spec, x, reach) {
  return spec.marks.filter((mark) => x >= mark.start - reach && x <= (mark.end ?? mark.start) + reach).map((mark) => mark.text).filter(Boolean);
}
