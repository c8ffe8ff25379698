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
