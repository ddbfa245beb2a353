// Tables that sort by a click on a column's head, and their CSV.

function startTables(root) {
  for (const button of root.querySelectorAll("[data-csv-table]")) {
    button.addEventListener("click", () => download(button.dataset.csvTable, tableRows(document.getElementById(button.dataset.csvTable).querySelector("table"))));
  }
  for (const table of root.querySelectorAll(".card.table table")) {
    const kept = kepts.sorts[table.closest(".card").id];
    for (const [at, cell] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => sortTable(table, at, cell.getAttribute("aria-sort") !== "descending"));
    }
    if (kept) sortTable(table, kept.at, kept.down);
  }
}

/** Sort *table* by its column *at*; *down*: greatest first. Empty cells stay at the end. */
function sortTable(table, at, down) {
  const rows = [...table.tBodies[0].rows];
  const key = (row) => (row.cells[at].dataset.value === undefined ? row.cells[at].textContent : Number(row.cells[at].dataset.value));
  rows.sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    if ((left === "–") !== (right === "–")) return left === "–" ? 1 : -1;
    const order = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  kepts.sorts[table.closest(".card").id] = { at, down };
}
