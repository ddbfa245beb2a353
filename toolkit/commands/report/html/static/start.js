// Starts the page: draws every chart once, and then what keys, buttons and a running job ask for.

// What survives when a live page exchanges its content.
const kepts = { lines: {}, sorts: {} };
const plots = new Map();
let unfolding = null;
const watcher = new ResizeObserver((entries) => { for (const { target } of entries) plots.get(target.closest(".card").id)?.resize(); });

function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Draw all charts of *structure*, in the document as it is now. */
function show(structure, arrays) {
  const spans = new Map([...groups].map(([name, group]) => [name, [group.shown, group.full]]));
  groups.clear();
  const folded = new Map(); // By their figures: hundreds would take seconds, so each is drawn when it comes into view.
  for (const spec of structure.plots) {
    const figure = document.getElementById(spec.id);
    if (figure.closest("details.more")) folded.set(figure, spec);
    else add(spec, arrays, figure);
  }
  unfolding = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) unfold(folded.get(target), arrays, target);
  }, { rootMargin: "400px 0px" });
  for (const figure of folded.keys()) unfolding.observe(figure);
  for (const [name, group] of groups) {
    const [shown, full] = spans.get(name) ?? [null, null];
    if (!shown) continue;
    // Somebody who looks at the end goes on looking at the end.
    const by = shown[1] >= full[1] ? group.full[1] - full[1] : 0;
    group.shown = [shown[0] + by, shown[1] + by];
  }
  for (const plot of plots.values()) {
    plot.draw();
    watcher.observe(plot.box);
  }
  startTables(document.getElementById("main"));
  sayScrolls();
  markContents();
  for (const text of document.querySelectorAll(".lines pre")) text.scrollTop = text.scrollHeight;
}

function add(spec, arrays, figure) {
  const plot = new (spec.type === "chart" ? Chart : HeatMap)(spec, arrays, figure);
  plot.start();
  plots.set(spec.id, plot);
  return plot;
}

function unfold(spec, arrays, figure) {
  unfolding.unobserve(figure);
  const group = groupOf(spec), before = String(group.full), plot = add(spec, arrays, figure);
  plot.draw();
  watcher.observe(plot.box);
  if (String(group.full) !== before) group.apply(); // It is longer than those that are drawn.
}

function forgetPlots() {
  watcher.disconnect();
  unfolding.disconnect();
  for (const plot of plots.values()) plot.u.destroy();
  plots.clear();
}

let contentsObserver = null;

/** Mark the section that is read in the table of contents. */
function markContents() {
  contentsObserver?.disconnect();
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const visible = new Set();
  contentsObserver = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) visible[isIntersecting ? "add" : "delete"](target.id);
    const first = [...links.keys()].find((id) => visible.has(id));
    for (const [id, link] of links) if (id === first) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }, { rootMargin: "-64px 0px -50% 0px" });
  for (const section of document.querySelectorAll("main > section")) contentsObserver.observe(section);
}

async function start() {
  startTheme();
  if (matchMedia("(max-width: 62rem)").matches) document.getElementById("contents").open = false;
  const structure = JSON.parse(document.getElementById("structure").textContent);
  const arrays = await unpacked(document.getElementById("numbers").textContent);
  show(structure, arrays);
  repaint.add(() => { for (const plot of plots.values()) { plot.u.redraw(false, true); plot.describe(); } });
  startLive(structure);
  addEventListener("resize", sayScrolls);
  document.addEventListener("toggle", sayScrolls, true);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not([open], .more)")];
    for (const each of opened) each.open = true;
    applyTheme();
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; applyTheme(); });
  await new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); });
  document.documentElement.dataset.shownMs = performance.now().toFixed(0); // Since the navigation; scripts/bench reads it.
}

/** What tests and scripts/bench use; nothing on the page does. */
window.toolkitPage = {
  plots,
  moveTo(id, x) { const plot = plots.get(id); plot.go(nearest(plot.u.data[0], x)); },
  zoom(id, low, high) { plots.get(id).group.zoom(low, high); },
  csv(id) { return plots.has(id) ? csvText(plots.get(id).csv()) : csvText(tableRows(document.getElementById(id).querySelector("table"))); },
};

start();
