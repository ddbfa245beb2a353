// Charts that share cursor and zoom. The group holds the shown span; a chart asks it.

const groups = new Map(); // By name; those of one page.

function groupOf(spec) {
  const name = spec.cursor ? `${spec.cursor}/${spec.x.kind}` : `alone/${spec.id}`;
  if (!groups.has(name)) groups.set(name, new Group(name));
  return groups.get(name);
}

class Group {
  constructor(name) {
    this.name = name;
    this.plots = [];
    this.full = [Infinity, -Infinity]; // What all charts have together.
    this.shown = null; // [low, high] while zoomed.
    this.least = 0; // The narrowest span worth showing.
    this.moving = false;
  }

  add(plot) {
    this.plots.push(plot);
    const [low, high] = plot.span();
    if (low <= high) this.full = [Math.min(this.full[0], low), Math.max(this.full[1], high)];
    this.least = Math.max(this.least, plot.step * 3);
  }

  span() {
    if (this.shown) return this.shown;
    const [low, high] = this.full;
    if (!(low <= high)) return [0, 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  /** Show from *low* to *high*, null: everything. */
  zoom(low, high) {
    if (low === null) this.shown = null;
    else {
      const [first, last] = this.full;
      let width = Math.max(high - low, Math.min(this.least, last - first));
      const middle = (low + high) / 2;
      low = Math.max(first, Math.min(middle - width / 2, last - width));
      high = Math.min(last, low + width);
      this.shown = low <= first && high >= last ? null : [low, high];
    }
    this.apply();
  }

  zoomBy(factor, around) {
    const [low, high] = this.span();
    const at = around === null || around < low || around > high ? (low + high) / 2 : around;
    this.zoom(at - (at - low) * factor, at + (high - at) * factor);
  }

  /** Move the shown span so that *x* is in it. */
  reveal(x) {
    const [low, high] = this.span();
    if (x < low) this.zoom(x - (high - low) * 0.1, x + (high - low) * 0.9);
    else if (x > high) this.zoom(x - (high - low) * 0.9, x + (high - low) * 0.1);
  }

  apply() {
    const [min, max] = this.span();
    for (const plot of this.plots) plot.u.batch(() => plot.u.setScale("x", { min, max }));
    for (const plot of this.plots) plot.describe();
  }

  /** The cursor of *from* stands at *x* (null: nowhere): so do those of the other charts. */
  moved(from, x) {
    if (this.moving) return;
    this.moving = true;
    for (const plot of this.plots) if (plot !== from) plot.follow(x);
    this.moving = false;
  }
}

/** The index of the point of the sorted *xs* that is nearest to *x*. */
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return high < 0 ? -1 : x - xs[low] <= xs[high] - x ? low : high;
}

/** The index of the last of the sorted *xs* that is not above *x*, -1 if all are. */
function lastUpTo(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** The usual distance between the points *xs*. */
function usualStep(xs) {
  if (xs.length < 2) return 0;
  const steps = [];
  for (let i = 1; i < xs.length; i += Math.max(1, Math.floor(xs.length / 200))) steps.push(xs[i] - xs[i - 1]);
  steps.sort((a, b) => a - b);
  return steps[steps.length >> 1];
}
