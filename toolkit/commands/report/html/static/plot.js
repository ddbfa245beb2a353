// What charts and heat maps have in common: the canvas, the x axis, the cursor, keys and buttons.

const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Cantarell, 'DejaVu Sans', sans-serif";

class Plot {
  constructor(spec, arrays, figure) {
    this.spec = spec;
    this.arrays = arrays;
    this.figure = figure;
    this.box = figure.querySelector(".canvas");
    this.legend = figure.querySelector(".legend");
    this.index = null; // Of the point that the cursor is on.
    this.step = 0;
  }

  start() {
    this.group = groupOf(this.spec);
    this.group.add(this);
  }

  draw() {
    const options = this.options();
    this.box.style.minHeight = `${this.height()}px`; // uPlot lays out later: nothing on the page may move then.
    this.u = new uPlot({
      width: this.box.clientWidth,
      height: this.height(),
      legend: { show: false },
      padding: [10, () => this.rightSize(), 0, 0],
      ...options,
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => this.group.zoom(null) },
        ...options.cursor,
      },
      hooks: {
        ...options.hooks,
        setCursor: [() => this.cursorMoved()],
        setSelect: [(u) => this.selected(u)],
      },
    }, this.data(), this.box);
    this.box.addEventListener("keydown", (event) => this.key(event));
    for (const button of this.figure.querySelectorAll("[data-do]")) button.addEventListener("click", () => this.act(button.dataset.do));
    this.describe();
  }

  /** The least width of the y axis: charts below one another begin at the same place, where there is room. */
  leftSize() {
    return this.box.clientWidth < 500 ? 0 : 88;
  }

  /** Half of the last x label: "0:00:01.500" of a short time is wider than others. */
  rightSize() {
    const { kind } = this.spec.x, [low, high] = this.group.span();
    return (kind === "time" || kind === "elapsed") && high - low < 20 ? 44 : 26;
  }

  xScale() {
    return { time: false, range: () => this.group.span() };
  }

  xAxis() {
    const axis = this.spec.x;
    const space = axis.kind === "time" || axis.kind === "elapsed" ? 84 : 64;
    return {
      scale: "x", stroke: () => colours.quiet, font: FONT, labelFont: FONT, label: axisLabel(axis), labelSize: 18, labelGap: 0,
      size: axis.kind === "time" ? 46 : 32, space, incrs: xSteps(axis), grid: { stroke: () => colours.grid, width: 1 }, ticks: { stroke: () => colours.edge, width: 1, size: 5 },
      values: (u, ticks, _axis, _space, step) => xTicks(axis, ticks, step),
    };
  }

  resize() {
    const width = this.box.clientWidth;
    if (width && (width !== this.u.width || this.height() !== this.u.height)) this.u.setSize({ width, height: this.height() });
  }

  selected(u) {
    if (u.select.width < 4) return;
    const low = u.posToVal(u.select.left, "x"), high = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.group.zoom(low, high);
  }

  cursorMoved() {
    if (this.moving) return;
    const { left, idx } = this.u.cursor;
    const x = left === undefined || left < 0 ? null : this.u.posToVal(left, "x");
    this.index = x === null || idx === undefined ? null : idx;
    this.describe();
    this.group.moved(this, x);
  }

  /** Follow the cursor of another chart of the group to *x*. */
  follow(x) {
    this.point(x);
  }

  /** Put the cursor at *x*, null: nowhere. */
  point(x) {
    this.moving = true;
    const inside = x !== null && x >= this.u.scales.x.min && x <= this.u.scales.x.max;
    this.u.setCursor(inside ? { left: this.u.valToPos(x, "x"), top: this.cursorTop() } : { left: -10, top: -10 });
    this.index = inside && this.u.cursor.idx !== undefined ? this.u.cursor.idx : null;
    this.moving = false;
    this.describe();
  }

  /** What the legend says of x: where the cursor is, else which span is shown. */
  whereText(x) {
    if (x !== null) return place(this.spec.x, x, this.step);
    const [low, high] = this.group.span(), { kind } = this.spec.x;
    if (!Number.isFinite(this.group.full[0])) return "nothing measured";
    const end = kind === "time" && day(low) === day(high) ? dayTime(high) : kind === "time" || kind === "elapsed" ? place(this.spec.x, high, 1) : number(high);
    return `${place(this.spec.x, low, 1)} to ${end}`;
  }

  cursorTop() {
    return this.u.over.clientHeight / 2;
  }

  /** Put the cursor on the point *index* and say what is there. */
  go(index) {
    const xs = this.u.data[0];
    if (!xs.length) return;
    index = Math.max(0, Math.min(xs.length - 1, index));
    this.group.reveal(xs[index]);
    this.point(xs[index]);
    this.group.moved(this, xs[index]);
    announce(this.spoken());
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const xs = this.u.data[0], [low, high] = this.group.span(), by = event.shiftKey ? 10 : 1;
    const at = this.index ?? nearest(xs, event.key === "ArrowLeft" ? high : low);
    const start = this.index === null;
    const does = {
      ArrowRight: () => this.go(start ? at : at + by),
      ArrowLeft: () => this.go(start ? at : at - by),
      Home: () => this.go(0),
      End: () => this.go(xs.length - 1),
      ArrowUp: () => this.choose(-1),
      ArrowDown: () => this.choose(1),
      "+": () => this.act("in"),
      "=": () => this.act("in"),
      "-": () => this.act("out"),
      _: () => this.act("out"),
      Escape: () => this.act("all"),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  act(what) {
    const x = this.index === null ? null : this.u.data[0][this.index];
    if (what === "in") this.group.zoomBy(0.5, x);
    else if (what === "out") this.group.zoomBy(2, x);
    else if (what === "all") this.group.zoom(null);
    else return download(this.spec.id, this.csv());
    if (x !== null) {
      this.point(x);
      this.group.moved(this, x);
    }
    const [low, high] = this.group.span();
    announce(`Shown: ${place(this.spec.x, low, this.step)} to ${place(this.spec.x, high, this.step)}`);
  }
}
