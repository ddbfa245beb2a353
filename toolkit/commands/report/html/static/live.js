// The page of a running job: it fetches itself and exchanges what it shows; zoom, choices and scroll positions stay.

const live = { paused: false, held: false, timer: 0, text: "" };

function startLive(structure) {
  const bar = document.getElementById("live"), button = document.getElementById("live-pause");
  bar.hidden = !structure.live;
  if (!structure.live) return;
  if (location.protocol === "file:") { // A file that toolkit report wrote: nobody answers.
    button.hidden = true;
    say("Written while the job ran. Write it anew to see more.");
    return;
  }
  live.refresh = structure.refresh_s * 1000;
  say(`Live, ${dayTime(Date.now() / 1000)} UTC`);
  button.addEventListener("click", () => {
    live.paused = !live.paused;
    button.textContent = live.paused ? "Resume" : "Pause";
    say(live.paused ? "Paused" : "Live");
    if (!live.paused) refresh();
  });
  // What is pressed stays until it is released: a click or a drag must find what it began on.
  addEventListener("pointerdown", () => { live.held = true; }, true);
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => { live.held = false; }), true);
  live.timer = setTimeout(refresh, live.refresh);
}

function say(text) {
  document.getElementById("live-text").textContent = text;
}

async function refresh() {
  clearTimeout(live.timer);
  if (live.paused) return;
  let next = live.refresh;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const text = await answer.text();
    const isBusy = live.held || live.paused || !getSelection().isCollapsed; // Somebody marks a text: leave it be.
    if (text !== live.text && !isBusy) {
      live.text = text;
      if (!(await exchange(new DOMParser().parseFromString(text, "text/html")))) return;
    }
    if (!live.paused) say(`Live, ${dayTime(Date.now() / 1000)} UTC`);
  } catch {
    say("No answer: the job has ended, or the connection is lost. This is what was known last.");
    next = Math.max(next, 5000);
  }
  live.timer = setTimeout(refresh, next);
}

/** Show what *fresh*, a newer version of this document, has; return whether the job still runs. */
async function exchange(fresh) {
  const structure = JSON.parse(fresh.getElementById("structure").textContent);
  const arrays = await unpacked(fresh.getElementById("numbers").textContent);
  const open = new Map([...document.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const scrolls = [...document.querySelectorAll("pre[id], .card .scroll")].map((each) => [scrollKey(each), each.scrollTop, each.scrollLeft, atEnd(each)]);
  const focused = focusKey(document.activeElement), [x, y] = [scrollX, scrollY];
  forgetPlots();
  document.title = fresh.title;
  for (const part of [".bar-title", ".contents ol", "main"]) document.querySelector(part).replaceChildren(...fresh.querySelector(part).childNodes);
  for (const each of document.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
  show(structure, arrays);
  for (const each of document.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
  const kept = new Map(scrolls.map(([key, ...rest]) => [key, rest]));
  for (const each of document.querySelectorAll("pre[id], .card .scroll")) {
    const [top, left, end] = kept.get(scrollKey(each)) ?? [0, 0, true];
    each.scrollTop = end && each.localName === "pre" ? each.scrollHeight : top;
    each.scrollLeft = left;
  }
  scrollTo({ left: x, top: y, behavior: "instant" });
  if (focused) document.querySelector(focused)?.focus({ preventScroll: true });
  document.getElementById("live").hidden = !structure.live;
  if (!structure.live) announce(`The job has ended: ${document.querySelector(".status").textContent}`);
  return structure.live;
}

function scrollKey(element) {
  return element.id || `${element.closest(".card").id} table`;
}

function atEnd(element) {
  return element.scrollTop + element.clientHeight >= element.scrollHeight - 4;
}

/** A selector that finds the focused element again, "" if it has no place that lasts. */
function focusKey(element) {
  const card = element?.closest?.(".card[id]");
  if (!card) return "";
  const own = element.matches(".canvas") ? ".canvas" : element.dataset.do ? `[data-do="${element.dataset.do}"]` : element.localName === "pre" ? "pre" : "";
  return own && `#${CSS.escape(card.id)} ${own}`;
}
