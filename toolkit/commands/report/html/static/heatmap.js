// A heat map: an image behind uPlot's axes and cursor. What is more stands out more: darker on light, lighter on dark.

// From sand to night, and from night to sand: the least is near to the card that it is on.
const SHADES = {
  light: ["#f7f0d8", "#dfe3bd", "#b3d1b4", "#7db8b0", "#4c99aa", "#2f769c", "#255085", "#1f2f63", "#160f3a"],
  dark: ["#1c2a3f", "#1f3d5e", "#22557c", "#2f7490", "#4c97a0", "#78b7a5", "#abd0ac", "#dbe2ba", "#fbf3d6"],
};
const TABLES = { light: shadeTable(SHADES.light), dark: shadeTable(SHADES.dark) };

function shownTheme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

/** The pixels of *shades*, from 1 (least) to 255 (most); 0 is transparent: not measured. */
function shadeTable(shades) {
  const table = new Uint8ClampedArray(256 * 4);
  const rgb = shades.map((shade) => [1, 3, 5].map((at) => parseInt(shade.slice(at, at + 2), 16)));
  for (let i = 1; i < 256; i++) {
    const at = ((i - 1) / 254) * (rgb.length - 1), low = Math.min(Math.floor(at), rgb.length - 2), part = at - low;
    for (let c = 0; c < 3; c++) table[i * 4 + c] = rgb[low][c] + (rgb[low + 1][c] - rgb[low][c]) * part;
    table[i * 4 + 3] = 255;
  }
  return new Uint32Array(table.buffer);
}

class HeatMap extends Plot {
  constructor(spec, arrays, figure) {
    super(spec, arrays, figure);
    this.columns = arrays.get(spec.columns);
    this.values = arrays.get(spec.values);
    const low = spec.y.low ?? 0, width = spec.top - low || 1;
    this.shades = Uint8Array.from(this.values, (value) => (value === null ? 0 : Math.max(1, Math.min(255, 1 + Math.round(((value - low) / width) * 254)))));
    this.step = usualStep(this.columns) || 1;
    this.row = null;
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.canvas = document.createElement("canvas");
  }

  span() {
    const count = this.columns.length;
    return count ? [this.columns[0], this.columns[count - 1] + this.step] : [Infinity, -Infinity];
  }

  height() {
    const rows = this.spec.rows.length;
    return 78 + Math.min(Math.max(rows * (rows <= 24 ? 18 : 3), 40), 480);
  }

  data() {
    return [this.columns, this.columns.map(() => null)];
  }

  options() {
    const rows = this.spec.rows, size = Math.max(this.leftSize(), 14 + 6.6 * Math.min(22, Math.max(3, ...rows.map((name) => name.length))));
    return {
      series: [{}, { paths: () => null, points: { show: false } }],
      scales: { x: this.xScale(), y: { dir: -1, range: () => [0, Math.max(rows.length, 1)] } },
      axes: [{ ...this.xAxis(), grid: { show: false } }, {
        scale: "y", stroke: () => colours.quiet, font: FONT, size, grid: { show: false }, ticks: { show: false }, gap: 6,
        splits: () => this.ticks(), values: (_u, ticks) => ticks.map((at) => short(rows[Math.floor(at)] ?? "", 22)),
      }],
      cursor: { points: { show: false } },
      hooks: { drawClear: [(u) => this.paint(u)], draw: [(u) => drawMarks(u, this.spec)], ready: [(u) => u.over.append(this.tip)] },
    };
  }

  /** Where row names stand: in the middle of a row, as many as have room. */
  ticks() {
    const rows = this.spec.rows.length, room = Math.max(1, Math.floor((this.height() - 78) / 15)), every = Math.ceil(rows / room);
    return Array.from({ length: Math.ceil(rows / every) }, (_, i) => i * every + 0.5);
  }

  value(row, column) {
    return this.values[row * this.columns.length + column];
  }

  /** Paint the shown span: a pixel has the greatest value of the columns that it covers. */
  paint(u) {
    const { left, top, width, height } = u.bbox, rows = this.spec.rows.length, columns = this.columns.length;
    if (!rows || !columns || width < 1) return;
    const pixels = Math.round(width), [low, high] = [u.scales.x.min, u.scales.x.max], last = this.columns[columns - 1] + this.step;
    const [from, to] = [new Int32Array(pixels), new Int32Array(pixels)];
    for (let p = 0; p < pixels; p++) {
      const a = low + ((high - low) * p) / pixels, b = low + ((high - low) * (p + 1)) / pixels;
      from[p] = a >= last ? columns : lastUpTo(this.columns, a);
      to[p] = Math.max(from[p], lastUpTo(this.columns, b));
    }
    this.canvas.width = pixels;
    this.canvas.height = rows;
    const table = TABLES[shownTheme()];
    const context = this.canvas.getContext("2d"), image = context.createImageData(pixels, rows), paper = new Uint32Array(image.data.buffer);
    for (let row = 0; row < rows; row++) {
      for (let p = 0; p < pixels; p++) {
        let most = 0;
        for (let column = Math.max(0, from[p]); column <= to[p] && column < columns; column++) most = Math.max(most, this.shades[row * columns + column]);
        paper[row * pixels + p] = table[most];
      }
    }
    context.putImageData(image, 0, 0);
    u.ctx.save();
    u.ctx.fillStyle = faded(colours.quiet, 0.14);
    u.ctx.fillRect(left, top, width, height); // What was not measured.
    u.ctx.imageSmoothingEnabled = false;
    u.ctx.drawImage(this.canvas, left, top, width, height);
    u.ctx.restore();
  }

  cursorTop() {
    return this.row === null ? this.u.over.clientHeight / 2 : ((this.row + 0.5) / this.spec.rows.length) * this.u.over.clientHeight;
  }

  cursorMoved() {
    if (this.moving) return;
    const { left, top } = this.u.cursor;
    if (left >= 0 && top >= 0) this.row = Math.min(this.spec.rows.length - 1, Math.max(0, Math.floor((top / this.u.over.clientHeight) * this.spec.rows.length)));
    this.direct = left >= 0;
    super.cursorMoved();
  }

  go(index) {
    this.row ??= 0;
    this.direct = true;
    super.go(index);
  }

  choose(by) {
    this.row = this.row === null ? 0 : Math.max(0, Math.min(this.spec.rows.length - 1, this.row + by));
    this.go(this.index ?? Math.max(0, nearest(this.columns, this.group.span()[0])));
  }

  follow(x) {
    this.direct = false;
    super.follow(x);
  }

  /** The column that holds the cursor. */
  column() {
    if (this.index === null) return -1;
    return lastUpTo(this.columns, this.u.posToVal(this.u.cursor.left, "x"));
  }

  cellText(row, column) {
    const value = this.value(row, column);
    return value === null ? "not measured" : withUnit(number(value / this.spec.y.divisor), this.spec.y.label);
  }

  describe() {
    if (!this.legend.firstChild) this.makeLegend();
    this.bar.style.background = `linear-gradient(to right, ${SHADES[shownTheme()].join(", ")})`;
    const column = this.u ? this.column() : -1;
    const shown = this.direct && column >= 0 && this.row !== null && !!this.spec.rows.length;
    this.where.textContent = this.whereText(column < 0 ? null : this.columns[column]);
    this.tip.hidden = !shown;
    if (!shown) return;
    const name = document.createElement("b");
    name.textContent = this.cellText(this.row, column);
    this.tip.replaceChildren(`${this.spec.rows[this.row]}: `, name, document.createElement("br"), place(this.spec.x, this.columns[column], this.step));
    const { clientWidth, clientHeight } = this.u.over, left = this.u.cursor.left, top = this.cursorTop();
    this.tip.style.left = `${left + 14 + this.tip.offsetWidth > clientWidth ? Math.max(0, left - 14 - this.tip.offsetWidth) : left + 14}px`;
    this.tip.style.top = `${Math.min(Math.max(0, top - 20), Math.max(0, clientHeight - this.tip.offsetHeight))}px`;
  }

  makeLegend() {
    const scale = document.createElement("span"), { y, top } = this.spec;
    this.bar = document.createElement("i");
    this.where = document.createElement("span");
    this.where.className = "at";
    scale.className = "scale";
    scale.append(`${y.name}: ${withUnit(number((y.low ?? 0) / y.divisor), y.label)}`, this.bar, withUnit(number(top / y.divisor), y.label));
    this.legend.append(this.where, scale);
  }

  spoken() {
    const column = this.column();
    return `${this.spec.rows[this.row]}, ${place(this.spec.x, this.columns[column], this.step)}: ${this.cellText(this.row, column)}`;
  }

  csv() {
    const { x, y, rows } = this.spec;
    return [[...xHead(x), ...rows.map((name) => named(name, y.unit))], ...this.columns.map((at, column) => [...xCells(x, at), ...rows.map((_, row) => this.value(row, column))])];
  }
}

