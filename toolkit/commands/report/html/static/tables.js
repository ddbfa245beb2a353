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

/** Say below each table that scrolls where the rest of it is. */
function sayScrolls() {
  for (const box of document.querySelectorAll(".card .scroll")) {
    const wide = box.scrollWidth > box.clientWidth + 1, high = box.scrollHeight > box.clientHeight + 1;
    const text = [wide && "more columns to the right", high && "more rows below"].filter(Boolean).join(", ");
    let line = box.nextElementSibling?.matches(".scrolls") ? box.nextElementSibling : null;
    if (!text) line?.remove();
    else {
      if (!line) {
        line = document.createElement("p");
        line.className = "scrolls";
        box.after(line);
      }
      line.textContent = `Scroll the table: ${text}.`;
    }
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
