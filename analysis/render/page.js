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
        : (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      const rows = [...body.rows].sort((a, b) => (ascending ? compare(a, b) : compare(b, a)));
      body.append(...rows);
    });
  });
}

// Show the rows that hold every word of the filter, in a cell or in the id of the trial.
function makeFilter(box) {
  const label = box.querySelector(".filter");
  if (!label) return;
  const [input, found] = [label.querySelector("input"), box.querySelector(".found")];
  const rows = [...box.querySelector("tbody").rows];
  const texts = rows.map((row) =>
    [...row.cells].map((cell) => cell.textContent).concat(row.dataset.trial || "").join(" ").toLowerCase());
  label.hidden = false;
  const apply = () => {
    const words = input.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    found.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  };
  input.addEventListener("input", apply);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; apply(); }
  });
}

// What a cell has to add is shown by hovering, focus (keyboard) and touch alike.
function makeNotes(cells) {
  const note = document.createElement("div");
  note.className = "note-tip";
  note.id = "note-tip";
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  document.body.append(note);
  let shownAt = null;
  const hide = () => {
    note.hidden = true;
    if (shownAt) shownAt.removeAttribute("aria-describedby");
    shownAt = null;
  };
  const place = () => {
    if (!shownAt) return;
    const [at, size] = [shownAt.getBoundingClientRect(), note.getBoundingClientRect()];
    const width = document.documentElement.clientWidth;
    const below = at.bottom + 6 + size.height <= window.innerHeight;
    note.style.left = `${Math.max(8, Math.min(at.left, width - size.width - 8))}px`;
    note.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
  };
  const show = (button) => {
    hide();
    note.textContent = button.dataset.note;
    note.hidden = false;
    button.setAttribute("aria-describedby", note.id);
    shownAt = button;
    place();
  };
  for (const cell of cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "note";
    button.dataset.note = cell.title;
    cell.removeAttribute("title");
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("mouseenter", () => show(button));
    button.addEventListener("mouseleave", () => { if (document.activeElement !== button) hide(); });
    button.addEventListener("focus", () => show(button));
    button.addEventListener("blur", hide);
    button.addEventListener("click", () => show(button));
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  window.addEventListener("scroll", place, { capture: true, passive: true });
}

// A link to what is folded unfolds it.
function unfold() {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!place) return;
  for (let part = place; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  place.scrollIntoView();
}

for (const box of document.querySelectorAll("div.table")) {
  makeSortable(box.querySelector("table.sortable"));
  makeFilter(box);
}
makeNotes(document.querySelectorAll("td[title]"));
for (const contents of document.querySelectorAll(".contents details")) contents.open = innerWidth > 700;
window.addEventListener("hashchange", unfold);
unfold();
