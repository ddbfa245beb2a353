// Tables and charts as CSV files, made here.

/** A cell of a CSV file. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(rows) {
  return rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function download(name, rows) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csvText(rows)], { type: "text/csv" }));
  link.download = `${name.replace(/[^\w.-]+/g, "-")}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function named(name, unit) {
  return unit ? `${name} (${unit})` : name;
}

function xHead(axis) {
  if (axis.kind === "time") return ["time (s since 1970)", "time (UTC)"];
  return [axis.kind === "elapsed" ? "since the start (s)" : named(axis.name || axis.kind, axis.unit)];
}

function xCells(axis, x) {
  return axis.kind === "time" ? [x, new Date(x * 1000).toISOString()] : [x];
}

/** Head and rows of a table of the page, with the numbers as they were measured. */
function tableRows(table) {
  const head = [...table.tHead.rows[0].cells].map((cell) => named(cell.dataset.name, cell.dataset.unit));
  const bodies = [...table.tBodies, ...(table.tFoot ? [table.tFoot] : [])];
  const value = (cell) => (cell.dataset.value === undefined ? cell.textContent.replace(/^–$/, "") : Number(cell.dataset.value));
  return [head, ...bodies.flatMap((body) => [...body.rows].map((row) => [...row.cells].map(value)))];
}
