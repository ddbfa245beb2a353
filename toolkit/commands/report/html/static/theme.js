// Colours: light, dark, or as the system has it. Charts ask `colours` when they draw.

const PRINTS = matchMedia("print"), DARK = matchMedia("(prefers-color-scheme: dark)");
const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
const colours = {};
const repaint = new Set(); // Functions to call when the colours have changed.
let theme = "auto";

function remembered(value) {
  try { // A page opened as a file may have no storage.
    if (value === undefined) return localStorage.getItem("toolkit-theme");
    localStorage.setItem("toolkit-theme", value);
  } catch { /* Then the choice lasts as long as the page. */ }
  return null;
}

function applyTheme() {
  const dark = !PRINTS.matches && (theme === "dark" || (theme === "auto" && DARK.matches));
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const style = getComputedStyle(document.documentElement);
  for (const name of ["text", "quiet", "edge", "grid", "card", "accent", "good", "warn", "bad"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.plain = colours.quiet;
  colours.lines = Array.from({ length: 8 }, (_, i) => style.getPropertyValue(`--c${i}`).trim());
  document.getElementById("theme-text").textContent = THEMES[theme];
  document.getElementById("theme").setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system" : theme}`);
  for (const paint of repaint) paint();
}

function startTheme() {
  theme = remembered() in THEMES ? remembered() : "auto";
  document.getElementById("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    remembered(theme);
    applyTheme();
  });
  DARK.addEventListener("change", applyTheme);
  PRINTS.addEventListener("change", applyTheme);
  applyTheme();
}

/** *colour* (#rrggbb) with *alpha* from 0 to 1. */
function faded(colour, alpha) {
  return colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
