// What the charts of a page show as text, and the elements they are built of; chart.js draws with these.
const chartParts = (() => {
  "use strict";
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const make = (tag, attributes = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in made && name !== "style") made[name] = value; else made.setAttribute(name, value);
    }
    made.append(...inside);
    return made;
  };

  // Four significant digits, as the tables have them; whole digits are never cut.
  const number = (value) => {
    if (value === 0) return "0";
    const digits = 3 - Math.floor(Math.log10(Math.abs(value)));
    if (digits > 7) return String(Number(value.toPrecision(3)));
    const places = Math.min(20, Math.max(0, digits));
    return value.toLocaleString("en-US", { minimumFractionDigits: Number.isInteger(value) ? 0 : places, maximumFractionDigits: places });
  };
  const scaled = (value, step, units) => {
    let place = 0;
    while (Math.abs(value) >= 0.9999 * (step === 1024 ? 1000 : step) && place < units.length - 1) { value /= step; place += 1; }
    return `${number(value)} ${units[place]}`.trim();
  };
  const formed = (value, form) =>
    form === "percent" ? `${number(value)} %`
      : form === "size" ? scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"])
        : form === "si" ? scaled(value, 1000, ["", "k", "M", "G", "T", "P"]) : number(value);
  // Ticks are round numbers: nothing is filled up with zeros.
  const ticked = (value, form) => formed(value, form).replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
  const unit = (axis) => axis.unit.split(",")[0];
  const shown = (value, axis) => {
    if (axis.names[value] !== undefined && (axis.category || axis.scale === "log2")) return axis.names[value].replace("\n", " ");
    if (axis.category) return axis.names[Math.round(value)]?.replace("\n", " ") ?? number(value);
    return unit(axis) && !axis.form ? `${number(value)} ${unit(axis)}` : formed(value, axis.form);
  };
  const wrapped = (text, letters) => {
    if (text === undefined) return "";
    const lines = [];
    for (const part of String(text).split("\n")) {
      let line = "";
      for (const word of part.split(" ")) {
        if (line && line.length + word.length >= letters) { lines.push(line); line = word; }
        else line = line ? `${line} ${word}` : word;
      }
      lines.push(line);
    }
    return lines.length > 1 ? lines : lines[0];
  };

  const rows = (series) => {
    const names = Object.keys(series.data);
    const count = names.length ? series.data[names[0]].length : 0;
    return Array.from({ length: count }, (_, place) => Object.fromEntries(names.map((name) => [name, series.data[name][place]])));
  };

  // The facts of one value: [where on the category or x axis, the value, its interval or extent].
  const said = (panel, series, row) => {
    const { x, y } = panel;
    if (series.kind === "line") {
      return [shown(row.x, x), shown(row.y, y), known(row.low) && known(row.high) ? `${shown(row.low, y)} to ${shown(row.high, y)}` : ""];
    }
    if (series.kind === "area") return [shown(row.x, x), "", `${shown(row.low, y)} to ${shown(row.high, y)}`];
    if (series.kind === "bars") {
      const [category, value] = series.across ? [y, x] : [x, y];
      const begin = row.begin ?? 0;
      // A lane of a category may lie beside its place.
      const at = shown(category.category ? Math.round(row.at) : row.at, category);
      if (begin === row.end && row.label) return [at, row.label, ""];
      const extent = begin ? `${shown(begin, value)} to ${shown(row.end, value)}` : "";
      return [at, shown(row.end - begin, value), extent];
    }
    if (series.kind === "matrix") {
      const at = `${y.label || "row"}: ${y.names[row.row] ?? row.row + 1}, ${x.label || "column"}: ${x.names[row.column] ?? row.column + 1}`;
      return [at, known(row.value) ? row.label?.replace("\n", ", ") || formed(row.value, panel.matrix.form) : "not known", ""];
    }
    const axis = panel[series.axis];
    return series.kind === "rule" ? ["", shown(row.at, axis), ""] : ["", "", `${shown(row.low, axis)} to ${shown(row.high, axis)}`];
  };
  const headings = (panel, series) => {
    if (series.kind === "matrix") return ["", "value", ""];
    const [place, value] = series.kind === "bars" && series.across ? [panel.y, panel.x] : [panel.x, panel.y];
    const one = series.axis ? panel[series.axis] : value;
    return [place.label || "at", one.label || panel.title || "value", series.kind === "bars" || series.kind === "band" ? "from, to" : "interval"];
  };

  const swatch = (key) => {
    const space = "http://www.w3.org/2000/svg";
    const picture = document.createElementNS(space, "svg");
    const add = (tag, attributes) => {
      const part = document.createElementNS(space, tag);
      for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
      picture.append(part);
    };
    for (const [name, value] of [["width", 24], ["height", 12], ["aria-hidden", "true"]]) picture.setAttribute(name, value);
    if (key.shape === "bar") add("rect", { x: 4, y: 1, width: 16, height: 10, rx: 2, fill: key.colour, "fill-opacity": Math.max(0.3, key.opacity) });
    if (key.shape === "line") add("line", { x1: 0, x2: 24, y1: 6, y2: 6, stroke: key.colour, "stroke-width": 2, "stroke-dasharray": key.dash.join(" ") });
    if (key.marker || key.shape === "point") {
      const marks = {
        square: "M8,2H16V10H8Z", diamond: "M12,1L17,6L12,11L7,6Z", "triangle-up": "M12,1L17,10H7Z", "triangle-down": "M12,11L17,2H7Z",
        cross: "M10,1H14V4H17V8H14V11H10V8H7V4H10Z",
      };
      const look = { fill: key.hollow ? "var(--paper)" : key.colour, stroke: key.colour, "stroke-width": 1.5 };
      if (key.marker.startsWith("M")) add("path", { d: "M8,2L16,10M16,2L8,10", stroke: key.colour, "stroke-width": 2.5 });
      else if (marks[key.marker]) add("path", { d: marks[key.marker], ...look });
      else add("circle", { cx: 12, cy: 6, r: 4, ...look });
    }
    return picture;
  };

  return { known, make, formed, ticked, unit, wrapped, rows, said, headings, swatch };
})();
