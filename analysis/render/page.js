"use strict";

// Sort a table by the column whose heading is clicked; again to reverse the order.
function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const numeric = heading.classList.contains("number");
      const before = heading.ariaSort;
      const ascending = before ? before === "descending" : !numeric;
      headings.forEach((other) => { other.ariaSort = null; });
      heading.ariaSort = ascending ? "ascending" : "descending";
      const key = (row) => row.cells[column].dataset.sort;
      const number = (row) => (key(row) === "-inf" ? -Number.MAX_VALUE : Number(key(row)));
      const order = (a, b) => (numeric ? number(a) - number(b) : key(a).localeCompare(key(b), undefined, { numeric: true }));
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => (ascending ? order(a, b) : order(b, a))));
    });
  });
}

// Show the rows that hold every word of the filter, in a cell or in the id of the trial.
function makeFilter(box) {
  const label = box.querySelector("label");
  if (!label) return;
  const [input, output, rows] = [label.querySelector("input"), box.querySelector("output"), [...box.querySelectorAll("tbody tr")]];
  label.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    for (const row of rows) {
      const text = `${[...row.cells].map((cell) => cell.textContent).join(" ")} ${row.dataset.trial || ""}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    output.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  });
}

// A link to what is folded unfolds it.
function unfold() {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = place; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (place) place.scrollIntoView();
}

for (const box of document.querySelectorAll("div.table")) {
  makeSortable(box.querySelector("table"));
  makeFilter(box);
}
window.addEventListener("hashchange", unfold);
unfold();

// A click, Enter or Space on an entry of a legend shows or hides its series.
for (const chart of document.querySelectorAll(".chart")) {
  const keys = [...chart.querySelectorAll("[data-key]")];
  const toggle = (name) => {
    const shown = keys.find((key) => key.dataset.key === name).getAttribute("aria-pressed") === "false";
    for (const key of keys) if (key.dataset.key === name) key.setAttribute("aria-pressed", shown);
    for (const mark of chart.querySelectorAll("[data-series]")) {
      if (mark.dataset.series === name) mark.toggleAttribute("data-off", !shown);
    }
  };
  for (const key of keys) {
    key.setAttribute("aria-pressed", "true");
    key.addEventListener("click", () => toggle(key.dataset.key));
    if (!key.querySelector("text")) continue;
    key.setAttribute("role", "button");
    key.setAttribute("tabindex", "0");
    key.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle(key.dataset.key);
    });
  }
}
