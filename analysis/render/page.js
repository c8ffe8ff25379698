"use strict";
// Sort a table by the column whose heading is clicked; again to turn the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.tabIndex = 0;
    const sort = () => {
      const ascending = heading.getAttribute("aria-sort") === "descending" ||
        (!heading.hasAttribute("aria-sort") && !heading.classList.contains("number"));
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].dataset.sort;
      const numeric = heading.classList.contains("number");
      const number = (text) => (text === "-inf" ? -Infinity : Number(text));
      const compare = numeric
        ? (a, b) => { const [x, y] = [number(key(a)), number(key(b))]; return x === y ? 0 : x < y ? -1 : 1; }
        : (a, b) => key(a).localeCompare(key(b));
      const rows = [...body.rows].sort((a, b) => (ascending ? compare(a, b) : compare(b, a)));
      body.append(...rows);
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
