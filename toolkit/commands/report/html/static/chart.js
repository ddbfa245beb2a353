// A chart of lines, bars or points, drawn by uPlot. A line has up to three series: greatest, mean and least.

// Beyond so many lines (of so many with a band), the median and the furthest from it have colours; the others wait in grey.
const MANY = 8, MANY_BANDS = 4;
const DASHES = [undefined, [7, 3], [2, 3], [7, 3, 2, 3]]; // Eight lines have each a colour; more of them are dashed.
const LABEL = 26; // Characters of a label that fit beside the chart.
const LEGEND_LIMIT = 8; // Lines whose values the live region speaks.

class Chart extends Plot {
  constructor(spec, arrays, figure) {
    super(spec, arrays, figure);
    const divided = (number) => arrays.get(number).map((value) => (value === null ? null : value / spec.y.divisor));
    this.lines = spec.lines.map((line, at) => ({
      ...line, at, xs: arrays.get(line.x), means: divided(line.mean),
      lows: line.low === undefined ? null : divided(line.low), highs: line.high === undefined ? null : divided(line.high),
    }));
    this.step = Math.max(0, ...this.lines.map((line) => usualStep(line.xs)));
    const shown = this.lines.filter((line) => line.shown);
    // Bars of which no two stand at one place: each has the name of its line below it.
    const places = this.lines.flatMap((line) => line.xs);
    this.apart = spec.style === "bars" && this.lines.length > 1 && new Set(places).size === places.length && this.lines.every((line) => line.xs.length === 1);
    if (this.apart) this.step = 1;
    this.many = spec.style !== "bars" && (shown.length > MANY || shown.filter((line) => line.lows).length > MANY_BANDS);
    if (this.many) this.addMedian(shown);
    const kept = kepts.lines[spec.id] ?? {};
    let colour = 0;
    for (const line of this.lines) {
      line.colour = colour++;
      line.state = kept[line.name] ?? (!line.shown ? "off" : this.many && !line.leading ? "grey" : "colour");
    }
    this.chosen = null; // A line that the pointer or the keyboard has chosen.
  }

  /** Add the median of *lines* in front, and give the line that is furthest from it a colour. */
  addMedian(lines) {
    const joined = this.onOneAxis(lines);
    const medians = joined[0].map((_, i) => median(joined.slice(1).map((values) => values[i]).filter((value) => value !== null && value !== undefined)));
    const away = joined.slice(1).map((values) => {
      const apart = values.map((value, i) => (value === null || value === undefined ? null : Math.abs(value - medians[i]))).filter((value) => value !== null);
      return apart.length ? apart.reduce((a, b) => a + b, 0) / apart.length : -1;
    });
    const furthest = lines[away.indexOf(Math.max(...away))];
    furthest.leading = "furthest from the median";
    this.lines = [
      { name: `median of ${lines.length}`, xs: joined[0], means: medians, lows: null, highs: null, shown: true, leading: "made here", computed: true },
      furthest,
      ...this.lines.filter((line) => line !== furthest),
    ];
  }

  /** The places of the longest of *lines*, then the values of each line there: a value holds until the next. */
  onOneAxis(lines) {
    const xs = lines.reduce((longest, line) => (line.xs.length > longest.length ? line.xs : longest), []);
    return [xs, ...lines.map((line) => (line.xs === xs ? line.means : xs.map((x) => line.means[lastUpTo(line.xs, x)] ?? null)))];
  }

  span() {
    let low = Infinity, high = -Infinity;
    for (const { xs } of this.lines) if (xs.length) [low, high] = [Math.min(low, xs[0]), Math.max(high, xs[xs.length - 1])];
    if (this.spec.style === "points") for (const mark of this.spec.marks) [low, high] = [Math.min(low, mark.start), Math.max(high, mark.end ?? mark.start)];
    const { low: fixedLow, high: fixedHigh } = this.spec.x;
    const margin = this.spec.style === "bars" ? (this.step || 1) / 2 : this.spec.style === "points" ? (high - low) * 0.02 : 0;
    return [fixedLow ?? low - margin, fixedHigh ?? high + margin];
  }

  height() {
    return this.box.clientWidth < 500 ? 210 : 230;
  }

  data() {
    const tables = this.lines.map((line) => [line.xs, ...(line.highs ? [line.highs, line.means, line.lows] : [line.means])]);
    if (!tables.length) return [[]];
    const same = tables.every((table) => table[0] === tables[0][0]);
    return same ? [tables[0][0], ...tables.flatMap((table) => table.slice(1))] : uPlot.join(tables);
  }

  options() {
    const series = [{}], bands = [], { style } = this.spec;
    for (const line of this.lines) {
      const stroke = (alpha) => () => this.stroke(line, alpha);
      const side = () => ({ stroke: stroke(0.75), width: 0.75, points: { show: false }, show: line.state === "colour" });
      if (line.highs) series.push(side());
      line.series = series.length;
      series.push({
        stroke: stroke(1), width: line.computed ? 2.25 : 1.6, show: line.state !== "off", dash: DASHES[Math.floor((this.many ? Math.max(0, line.colour - 1) : line.colour) / 8) % DASHES.length],
        paths: style === "bars" || style === "points" ? () => null : this.isStepped(line) ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: style === "points" ? { show: true, size: 6, fill: stroke(1) } : style === "bars" ? { show: false } : { show: line.xs.length < 2 ? true : undefined, size: 5, fill: stroke(1) },
      });
      if (line.highs) {
        series.push(side());
        bands.push({ series: [line.series - 1, line.series + 1], fill: () => faded(this.lineColour(line), 0.16) });
      }
    }
    const { y } = this.spec;
    return {
      series, bands,
      scales: { x: this.xScale(), y: { range: (_u, low, high) => this.yRange(low, high) } },
      axes: [this.apart ? this.namedAxis() : this.xAxis(), {
        scale: "y", stroke: () => colours.quiet, font: FONT, labelFont: FONT, label: short(axisLabel(y), LABEL, y.label), labelSize: 20, labelGap: 4, size: (_u, texts) => Math.max(this.leftSize() - 20, 16 + 7 * Math.max(3, ...(texts ?? []).map((text) => text.length))),
        space: 34, grid: { stroke: () => colours.grid, width: 1 }, ticks: { stroke: () => colours.edge, width: 1, size: 5 },
        values: (_u, ticks) => ticks.map(tick),
      }],
      cursor: {
        focus: this.many ? { prox: 24 } : undefined,
        points: {
          show: (_u, at) => {
            const line = this.lines.find((each) => each.series === at);
            return line && style !== "bars" && (!this.many || line.state === "colour") ? document.createElement("div") : false;
          },
          size: 8, fill: (_u, at) => { const line = this.lines.find((each) => each.series === at); return line ? this.stroke(line, 1) : "transparent"; }, stroke: () => colours.card, width: 1.5,
        },
      },
      focus: { alpha: 1 },
      hooks: {
        drawClear: [(u) => tintMarks(u, this.spec)],
        draw: [(u) => { if (style === "bars") this.drawBars(u); drawMarks(u, this.spec); }],
        setSeries: [(_u, at, options) => { if (options.focus !== undefined && this.many) this.hover(this.lines.find((each) => each.series === at) ?? null); }],
      },
    };
  }

  namedAxis() {
    const lines = [...this.lines].sort((a, b) => a.xs[0] - b.xs[0]), room = Math.max(4, Math.floor((this.box.clientWidth - 110) / lines.length / 7.5));
    return { ...this.xAxis(), splits: () => lines.map((line) => line.xs[0]), values: () => lines.map((line) => short(line.name, room)), grid: { show: false } };
  }

  isDrawnAsLine() {
    return this.spec.style === "lines" || this.spec.style === "stepped";
  }

  yRange(low, high) {
    const { y } = this.spec, fixed = [y.low, y.high].map((end) => (end === null ? null : end / y.divisor));
    if (low === null || low === undefined) [low, high] = [fixed[0] ?? 0, fixed[1] ?? (fixed[0] ?? 0) + 1];
    const zero = low >= 0 && (this.spec.style === "bars" || y.unit !== "" || low < high * 0.4);
    if (low === high && low === 0) high = 1;
    const [from, to] = uPlot.rangeNum(zero ? 0 : low, high, 0.08, false);
    // A value beyond a fixed end (800 % of a core) is shown all the same.
    return [fixed[0] === null ? (zero ? 0 : from) : Math.min(fixed[0], low), fixed[1] === null ? to : high > fixed[1] ? to : fixed[1]];
  }

  lineColour(line) {
    return line.computed ? colours.text : colours.lines[(this.many ? line.colour - 1 : line.colour) % 8];
  }

  stroke(line, alpha) {
    if (line === this.chosen) return this.lineColour(line);
    if (line.state === "grey") return faded(colours.quiet, 0.28);
    return alpha === 1 ? this.lineColour(line) : faded(this.lineColour(line), alpha);
  }

  drawBars(u) {
    const { ctx } = u, shown = this.lines.filter((line) => line.state !== "off"), xs = u.data[0];
    if (!shown.length || !xs.length) return;
    const field = Math.abs(u.valToPos((this.step || 1) + xs[0], "x", true) - u.valToPos(xs[0], "x", true)) * 0.8;
    const width = Math.max(1, this.apart ? Math.min(field, 120 * devicePixelRatio) : field / shown.length), bottom = u.valToPos(Math.max(0, u.scales.y.min), "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    shown.forEach((line, place) => {
      ctx.fillStyle = this.stroke(line, 1);
      u.data[line.series].forEach((value, i) => {
        if (value === null || value === undefined) return;
        const left = u.valToPos(xs[i], "x", true) - (this.apart ? width / 2 : field / 2 - place * width), top = u.valToPos(value, "y", true);
        ctx.fillRect(left, Math.min(top, bottom), Math.max(1, width - (width > 4 ? 1 : 0)), Math.abs(bottom - top));
      });
    });
    ctx.restore();
  }

  hover(line) {
    if (line === this.chosen) return;
    this.chosen = line;
    this.u.redraw(false, false);
    this.describe();
  }

  /** Choose the next (or, *by* -1, the previous) line that is shown. */
  choose(by) {
    const shown = this.lines.filter((line) => line.state !== "off");
    if (!shown.length) return;
    const at = shown.indexOf(this.chosen);
    this.chosen = shown[(at < 0 ? (by > 0 ? 0 : shown.length - 1) : at + by + shown.length) % shown.length];
    this.u.redraw(false, false);
    this.describe();
    announce(this.index === null ? this.chosen.name : `${this.chosen.name}: ${this.valueText(this.chosen, this.index)}`);
  }

  toggle(line) {
    line.state = line.state === "colour" ? (this.many && line.shown ? "grey" : "off") : "colour";
    (kepts.lines[this.spec.id] ??= {})[line.name] = line.state;
    this.u.batch(() => {
      this.u.setSeries(line.series, { show: line.state !== "off" });
      for (const at of line.highs ? [line.series - 1, line.series + 1] : []) this.u.setSeries(at, { show: line.state === "colour" });
    });
    this.u.redraw(false, false);
    this.describe();
  }

  /** The value of *line* at the point *index*: that of its last own point up to there. */
  at(line, index) {
    const x = this.u.data[0][index], own = lastUpTo(line.xs, x);
    if (own < 0 || (!this.isDrawnAsLine() && line.xs[own] !== x)) return { mean: null };
    return { mean: line.means[own], low: line.lows?.[own], high: line.highs?.[own] };
  }

  valueText(line, index) {
    const { mean, low, high } = this.at(line, index);
    if (mean === null) return "–";
    const band = low !== undefined && low !== null && low !== high ? ` (${number(low)} to ${number(high)})` : "";
    return withUnit(number(mean) + band, this.spec.y.label);
  }

  /** Whether *line* holds its value until the next: steps, and what counts something over time, as running ranks. */
  isStepped(line) {
    const { x, y, style } = this.spec;
    return style === "stepped" || (x.kind === "time" || x.kind === "elapsed") && !y.unit && line.means.every((value) => value === null || Number.isInteger(value));
  }

  /** The mean of what is shown; over time, a value counts for as long as it held, but a step counts once. */
  meanText(line) {
    const [from, to] = this.group.span(), { kind } = this.spec.x, step = usualStep(line.xs) || 1;
    let sum = 0, weights = 0;
    for (let i = Math.max(0, lastUpTo(line.xs, from)); i < line.xs.length && line.xs[i] <= to; i++) {
      if (line.means[i] === null) continue;
      const until = i + 1 < line.xs.length ? line.xs[i + 1] : line.xs[i] + step;
      const held = this.spec.style === "lines" && (kind === "time" || kind === "elapsed");
      const weight = held ? Math.max(0, Math.min(until, to) - Math.max(line.xs[i], from)) : 1;
      sum += line.means[i] * weight;
      weights += weight;
    }
    return weights ? `mean\u00a0${withUnit(number(sum / weights), this.spec.y.label)}` : "–";
  }

  describe() {
    if (!this.buttons) this.makeLegend();
    const reach = this.u ? (this.u.scales.x.max - this.u.scales.x.min) * 0.006 : 0;
    const x = this.index === null ? null : this.u.data[0][this.index];
    this.where.textContent = [this.apart ? "" : this.whereText(x), ...(x === null ? [] : marksAt(this.spec, x, reach))].join(" · ");
    for (const [line, { button, value, swatch }] of this.buttons) {
      button.setAttribute("aria-pressed", String(line.state === "colour"));
      swatch.style.setProperty("--line", line.state === "grey" && line !== this.chosen ? colours.quiet : this.lineColour(line));
      button.style.fontWeight = line === this.chosen ? "600" : "";
      value.textContent = line.state === "off" ? "" : x === null ? (this.isDrawnAsLine() ? this.meanText(line) : this.apart ? withUnit(number(line.means[0]), this.spec.y.label) : "") : this.valueText(line, this.index);
    }
  }

  makeLegend() {
    this.buttons = new Map();
    this.legend.replaceChildren();
    this.where = document.createElement("span");
    this.where.className = "at";
    this.legend.append(this.where);
    const rest = this.lines.filter((line) => this.many && !line.leading);
    for (const line of this.lines) if (!rest.includes(line)) this.legend.append(this.legendButton(line));
    if (!rest.length) return;
    const details = document.createElement("details"), summary = document.createElement("summary"), many = document.createElement("div");
    details.id = `${this.spec.id}-lines`;
    summary.textContent = `The ${rest.length} other lines, in grey: point at one, or choose it here`;
    many.className = "many";
    many.append(...rest.map((line) => this.legendButton(line)));
    details.append(summary, many);
    this.legend.append(details);
  }

  legendButton(line) {
    const button = document.createElement("button"), swatch = document.createElement("span"), name = document.createElement("span"), value = document.createElement("span");
    button.type = "button";
    swatch.className = "swatch";
    name.className = "name";
    name.textContent = line.leading && !line.computed ? `${line.name} (${line.leading})` : line.name;
    value.className = "value";
    button.append(swatch, name, " ", value);
    button.addEventListener("click", () => this.toggle(line));
    if (this.many) {
      button.addEventListener("mouseenter", () => this.hover(line));
      button.addEventListener("mouseleave", () => this.hover(null));
    }
    this.buttons.set(line, { button, value, swatch });
    return button;
  }

  spoken() {
    const shown = this.lines.filter((line) => line.state === "colour").slice(0, LEGEND_LIMIT);
    const lines = this.chosen ? [this.chosen] : shown;
    const x = this.u.data[0][this.index];
    return `${place(this.spec.x, x, this.step)}: ${lines.map((line) => `${line.name} ${this.valueText(line, this.index)}`).join(", ")}`;
  }

  csv() {
    const { x, y } = this.spec, lines = this.lines.filter((line) => !line.computed);
    const raw = (number) => (number === undefined ? null : this.arrays.get(number));
    const tables = lines.map((line) => [line.xs, raw(line.mean), ...(line.low === undefined ? [] : [raw(line.low), raw(line.high)])]);
    const joined = tables.length ? uPlot.join(tables) : [[]];
    const heads = lines.flatMap((line) => [line.name, ...(line.low === undefined ? [] : [`${line.name} minimum`, `${line.name} maximum`])]);
    return [[...xHead(x), ...heads.map((name) => named(name, y.unit))], ...joined[0].map((at, i) => [...xCells(x, at), ...joined.slice(1).map((values) => values[i])])];
  }
}

function median(values) {
  if (!values.length) return null;
  values.sort((a, b) => a - b);
  const middle = values.length >> 1;
  return values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}
