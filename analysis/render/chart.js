// Draws the charts of a page. `charts` is what analysis/render/chart.py returns of each figure; Vega-Lite draws a panel,
// this file adds what hover, touch and keys read, zoom, the legend that switches series, and the table of values.
const drawCharts = (charts) => {
  "use strict";
  const REACH = { mouse: 28, pen: 28, touch: 44 };  // pixels
  const LETTER = 6.4;
  const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const { known, make, formed, ticked, unit, wrapped, rows, said, headings, swatch } = chartParts;

  class PanelChart {
    constructor(owner, panel, number) {
      Object.assign(this, { owner, panel, number, at: null, view: null, drag: null });
      this.domain = { x: null, y: null };
      this.rows = panel.series.map(rows);
      const words = (axis) => (unit(axis) ? `${axis.label} (${axis.unit})`.trim() : axis.label);
      this.plot = make("div", { className: "plot", tabIndex: 0 });
      const filled = (parts, between) => parts.filter((part) => part.trim()).join(between);
      this.label = filled([owner.chart.title, panel.title, filled([words(panel.y), words(panel.x)], " by "),
        "Arrow keys read the values, + and - zoom, 0 resets the zoom."], ". ");
      this.describe();
      this.ring = make("div", { className: "ring", hidden: true });
      this.box = make("div", { className: "box", hidden: true });
      this.tip = make("div", { className: "tip", hidden: true, role: "status" });
      this.holder = make("div", { className: "holder" }, this.plot, this.ring, this.box, this.tip);
      this.element = make("div", { className: "panel-chart" });
      if (panel.title) this.element.append(make("p", { className: "chart-title", textContent: panel.title }));
      if (words(panel.y)) this.element.append(make("p", { className: "axis-y", textContent: words(panel.y) }));
      this.element.append(this.holder);
      if (words(panel.x)) this.element.append(make("p", { className: "axis-x", textContent: words(panel.x) }));
      if (panel.matrix?.key) this.element.append(this.scaleOfColours());
    }

    scaleOfColours() {
      const { most, form } = this.panel.matrix;
      return make("p", { className: "colours" }, "0", make("span"), formed(most, form));
    }

    // Vega gives the element a role and a label of its own.
    describe() {
      const named = { role: "application", "aria-roledescription": "chart", "aria-label": this.label };
      for (const [name, value] of Object.entries(named)) this.plot.setAttribute(name, value);
    }

    fit() {
      const width = this.plot.clientWidth;
      const { x, y, matrix, square, height } = this.panel;
      const longest = (axis) => Math.max(0, ...Object.values(axis.names).flatMap((name) => name.split("\n")).map((line) => line.length));
      const each = width * 0.8 / Math.max(1, x.places?.length ?? 1);
      const angle = x.category && (x.steep || longest(x) * LETTER > each * 1.6) ? -90 : 0;
      const cell = matrix && square ? Math.min(height / Object.keys(y.names).length || 400, (width * 0.8) / matrix.columns) : 0;
      const rowsOf = matrix ? y.high - y.low : 0;
      return {
        width, height: square && matrix ? Math.max(80, Math.round(rowsOf * Math.min(64, Math.max(cell, (width * 0.75) / matrix.columns)))) : height,
        xa: angle, xw: angle ? 18 : Math.max(6, Math.floor(each / LETTER)), yw: Math.max(10, Math.floor((width * 0.36) / LETTER)),
      };
    }

    async draw() {
      const { width, height, ...sizes } = this.fit();
      const datasets = Object.fromEntries(this.rows.map((found, place) => [`s${place}`, found]));
      const params = this.panel.spec.params.map((one) => (one.name in sizes ? { ...one, value: sizes[one.name] } : one));
      const style = getComputedStyle(document.body);
      const axis = { labelColor: "var(--soft)", labelFontSize: 11, gridColor: "var(--line)", domainColor: "var(--c-line)", tickColor: "var(--c-line)",
        labelFont: style.fontFamily, labelLimit: 400, labelPadding: 6, tickSize: 0, labelLineHeight: 13 };
      const config = { background: null, font: style.fontFamily, view: { stroke: null }, axis, mark: { aria: false } };
      const found = await vegaEmbed(this.plot, { ...this.panel.spec, params, datasets, width, height, config },
        { mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip: false, defaultStyle: false, hover: false,
          expressionFunctions: { chartTick: (tick, form) => (tick.label === "" ? "" : ticked(tick.value, form)), chartWrap: wrapped } });
      this.view = found.view;
      this.describe();
      this.listen();
      new ResizeObserver(() => this.refit()).observe(this.holder);
    }

    async refit() {
      const { width, height, ...sizes } = this.fit();
      if (!width || this.view.width === undefined || width === this.lastWidth) return;
      this.lastWidth = width;
      this.leave();
      for (const [name, value] of Object.entries(sizes)) this.view.signal(name, value);
      await this.view.width(width).height(height).resize().runAsync();
    }

    // Pixels of the plot, from its own corner.
    origin() {
      const [left, top] = this.view.origin();
      const padding = this.view.padding();
      return [left + padding.left, top + padding.top];
    }

    size() { return [this.view.signal("width"), this.view.signal("height")]; }

    scale(axis) { return this.view.scale(axis); }

    // The rectangle or point of a value in pixels: [x1, y1, x2, y2]; null where it is not in view.
    place(series, row) {
      const [sx, sy] = [this.scale("x"), this.scale("y")];
      const [width, height] = this.size();
      let found = null;
      if (series.kind === "line") found = known(row.x) && known(row.y) ? [sx(row.x), sy(row.y), sx(row.x), sy(row.y)] : null;
      if (found && series.shift) { found[0] += series.shift; found[2] += series.shift; }
      if (series.kind === "area") found = known(row.low) && known(row.high) ? [sx(row.x), sy(row.high), sx(row.x), sy(row.low)] : null;
      if (series.kind === "bars") {
        const half = (row.thick ?? series.thickness) / 2;
        const value = series.across ? this.panel.x : this.panel.y;
        const floor = value.scale === "linear" ? 0 : value.low;
        const ends = [row.begin ?? 0, row.end].map((end) => (value.scale === "linear" ? end : Math.max(end, floor)));
        found = !known(row.end) ? null : series.across
          ? [sx(ends[0]), sy(row.at - half), sx(ends[1]), sy(row.at + half)]
          : [sx(row.at - half), sy(ends[0]), sx(row.at + half), sy(ends[1])];
      }
      if (series.kind === "matrix") found = [sx(row.column - 0.5), sy(row.row - 0.5), sx(row.column + 0.5), sy(row.row + 0.5)];
      if (series.kind === "rule") found = series.axis === "x" ? [sx(row.at), 0, sx(row.at), height] : [0, sy(row.at), width, sy(row.at)];
      if (series.kind === "band") found = series.axis === "x" ? [sx(row.low), 0, sx(row.high), height] : [0, sy(row.low), width, sy(row.high)];
      if (!found || found.some((value) => !Number.isFinite(value))) return null;
      const [x1, x2] = [found[0], found[2]].sort((a, b) => a - b);
      const [y1, y2] = [found[1], found[3]].sort((a, b) => a - b);
      const outside = x2 < -1 || x1 > width + 1 || y2 < -1 || y1 > height + 1;
      return outside ? null : [Math.max(x1, 0), Math.max(y1, 0), Math.min(x2, width), Math.min(y2, height)];
    }

    active() {
      return this.panel.series.map((series, place) => [series, place])
        .filter(([series]) => !series.silent && !(series.group !== null && this.owner.off[series.group]));
    }

    nearest(px, py, reach) {
      let best = null;
      for (const behind of [false, true]) {
        for (const [series, place] of this.active()) {
          if ((series.kind === "rule" || series.kind === "band") !== behind) continue;
          this.rows[place].forEach((row, number) => {
            const box = this.place(series, row);
            if (!box) return;
            const aside = Math.hypot(Math.max(box[0] - px, 0, px - box[2]), Math.max(box[1] - py, 0, py - box[3]));
            // Points lie on bars, and the last one drawn lies above.
            const off = aside - (series.kind === "line" ? 8 : 0);
            if (aside <= reach && (!best || off < best.off)) best = { off, place, number };
          });
        }
        if (best) return best;
      }
      return null;
    }

    show(at, announce) {
      this.owner.leaveOthers(this);
      this.at = at;
      const series = this.panel.series[at.place];
      const row = this.rows[at.place][at.number];
      const box = this.place(series, row);
      if (!box) return;
      const values = said(this.panel, series, row);
      const names = headings(this.panel, series);
      const interval = values[2] ? [[names[2], values[2]]] : [];
      for (const [other, place] of this.active()) {
        if (place === at.place || other.name !== series.name || other.kind !== "area" || series.kind !== "line") continue;
        const same = this.rows[place].find((one) => one.x === row.x);
        if (same) interval.push(["interval", said(this.panel, other, same)[2]]);
      }
      const lines = [[names[0], values[0]], [names[1], values[1]], ...interval].filter(([, value]) => value);
      const mark = make("i", { className: "dot" });
      mark.style.background = row.fill ?? series.colour;
      this.tip.setAttribute("aria-live", announce ? "polite" : "off");
      this.tip.replaceChildren(make("b", {}, mark, series.name),
        make("dl", {}, ...lines.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })])));
      const [left, top] = this.origin();
      const point = box[0] === box[2] && box[1] === box[3];
      const [x1, y1, x2, y2] = point ? [box[0] - 7, box[1] - 7, box[0] + 7, box[1] + 7] : box;
      Object.assign(this.ring.style, { left: `${left + x1}px`, top: `${top + y1}px`, width: `${Math.max(2, x2 - x1)}px`, height: `${Math.max(2, y2 - y1)}px` });
      this.ring.classList.toggle("round", point);
      this.ring.hidden = this.tip.hidden = false;
      // Above the value where there is room, and never over the sides.
      const room = this.holder.clientWidth - this.tip.offsetWidth;
      const middle = left + (x1 + x2) / 2 - this.tip.offsetWidth / 2;
      const above = top + y1 - this.tip.offsetHeight - 8;
      this.tip.style.left = `${Math.max(0, Math.min(room, middle))}px`;
      this.tip.style.top = `${above > -60 ? above : top + y2 + 10}px`;
    }

    leave() {
      this.ring.hidden = this.tip.hidden = true;
      this.at = null;
    }

    step(series, along) {
      const choices = this.active().filter(([one, place]) => this.rows[place].some((row) => this.place(one, row)));
      if (!choices.length) return;
      let index = choices.findIndex(([, place]) => place === this.at?.place);
      if (index < 0) { this.show(this.first(choices[0], 0, 1), true); return; }
      const [, now] = choices[index];
      if (along) {
        const found = this.first(choices[index], this.at.number + along, along);
        if (found) this.show(found, true);
        return;
      }
      index = (index + series + choices.length) % choices.length;
      const [next, place] = choices[index];
      const centre = (one, row) => { const box = this.place(one, row); return box && [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]; };
      const here = centre(this.panel.series[now], this.rows[now][this.at.number]);
      let best = null;
      this.rows[place].forEach((row, number) => {
        const other = centre(next, row);
        const off = other && here ? Math.hypot(4 * (other[0] - here[0]), other[1] - here[1]) : other ? number : Infinity;
        if (off < (best?.off ?? Infinity)) best = { off, place, number };
      });
      if (best) this.show(best, true);
    }

    first([series, place], from, along) {
      for (let number = from; number >= 0 && number < this.rows[place].length; number += along) {
        if (this.place(series, this.rows[place][number])) return { place, number };
      }
      return null;
    }

    zoomable() { return ["x", "y"].filter((axis) => !this.panel[axis].category && !this.panel.matrix); }

    // Ends along which a zoom is even: logarithms on a logarithmic axis.
    even(axis) {
      const log = this.panel[axis].scale !== "linear";
      return { to: (value) => (log ? Math.log(value) : value), from: (value) => (log ? Math.exp(value) : value) };
    }

    setDomain(axis, ends) {
      const { low, high } = this.panel[axis];
      const { to, from } = this.even(axis);
      const [first, last] = [to(low), to(high)];
      const span = Math.min(ends[1] - ends[0], last - first);
      const begin = Math.max(first, Math.min(last - span, ends[0]));
      this.domain[axis] = span >= (last - first) * 0.999 ? null : [from(begin), from(begin + span)];
      this.view.signal(`${axis}d`, this.domain[axis]);
    }

    async change(each) {
      this.leave();
      this.zoomable().forEach(each);
      await this.view.runAsync();
      this.owner.zoomed();
    }

    ends(axis) {
      const { to } = this.even(axis);
      return (this.domain[axis] ?? [this.panel[axis].low, this.panel[axis].high]).map(to);
    }

    zoomBy(factor, around = { x: 0.5, y: 0.5 }) {
      return this.change((axis) => {
        const [low, high] = this.ends(axis);
        const centre = low + (high - low) * around[axis];
        this.setDomain(axis, [centre - (centre - low) * factor, centre + (high - centre) * factor]);
      });
    }

    pan(shares) {
      return this.change((axis) => {
        const [low, high] = this.ends(axis);
        this.setDomain(axis, [low + (high - low) * shares[axis], high + (high - low) * shares[axis]]);
      });
    }

    reset() { return this.change((axis) => { this.domain[axis] = null; this.view.signal(`${axis}d`, null); }); }

    isZoomed() { return Boolean(this.domain.x || this.domain.y); }

    share(event) {
      const [px, py] = this.pixels(event);
      const [width, height] = this.size();
      return { x: px / width, y: this.panel.y.down ? py / height : 1 - py / height };
    }

    pixels(event) {
      const box = this.plot.getBoundingClientRect();
      const [left, top] = this.origin();
      return [event.clientX - box.left - left, event.clientY - box.top - top];
    }

    listen() {
      const { plot } = this;
      const read = (event) => {
        const [px, py] = this.pixels(event);
        const found = this.nearest(px, py, REACH[event.pointerType] ?? REACH.mouse);
        if (found) this.show(found, false); else this.leave();
      };
      plot.addEventListener("pointermove", (event) => { if (this.drag) this.dragged(event); else if (event.pointerType !== "touch") read(event); });
      plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch" && !this.drag) this.leave(); });
      plot.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        const [px, py] = this.pixels(event);
        this.drag = { px, py, moved: false, last: this.share(event), pans: event.pointerType === "touch" || event.shiftKey };
        if (event.pointerType !== "touch") { plot.setPointerCapture(event.pointerId); event.preventDefault(); plot.focus({ preventScroll: true }); }
      });
      plot.addEventListener("pointerup", (event) => {
        const { drag } = this;
        this.drag = null;
        this.box.hidden = true;
        if (drag && !drag.moved) read(event);
        else if (drag && !drag.pans) this.zoomTo([drag.px, drag.py], this.pixels(event));
      });
      plot.addEventListener("pointercancel", () => { this.drag = null; this.box.hidden = true; });
      plot.addEventListener("dblclick", () => this.reset());
      plot.addEventListener("wheel", (event) => {
        // A plain wheel scrolls the page.
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.share(event));
      }, { passive: false });
      plot.addEventListener("keydown", (event) => this.key(event));
      plot.addEventListener("blur", () => this.leave());
    }

    dragged(event) {
      const { drag } = this;
      const [px, py] = this.pixels(event);
      drag.moved = drag.moved || Math.hypot(px - drag.px, py - drag.py) > 6;
      if (!drag.moved) return;
      if (drag.pans) {
        const now = this.share(event);
        const [from, last] = [{ ...drag.last }, now];
        if (this.isZoomed()) this.pan({ x: from.x - last.x, y: from.y - last.y });
        drag.last = now;
        return;
      }
      this.leave();
      const [left, top] = this.origin();
      const [width, height] = this.size();
      const [x1, x2] = [drag.px, px].map((value) => Math.max(0, Math.min(width, value))).sort((a, b) => a - b);
      let [y1, y2] = [drag.py, py].map((value) => Math.max(0, Math.min(height, value))).sort((a, b) => a - b);
      if (!this.zoomable().includes("y") || y2 - y1 < 20) [y1, y2] = [0, height];
      Object.assign(this.box.style, { left: `${left + x1}px`, top: `${top + y1}px`, width: `${x2 - x1}px`, height: `${y2 - y1}px` });
      this.box.hidden = false;
    }

    zoomTo(from, to) {
      const [width, height] = this.size();
      const ends = { x: [from[0] / width, to[0] / width], y: [from[1] / height, to[1] / height] };
      if (!this.panel.y.down) ends.y = ends.y.map((share) => 1 - share);
      const narrow = { x: Math.abs(from[0] - to[0]) < 8, y: Math.abs(from[1] - to[1]) < 20 };
      return this.change((axis) => {
        if (narrow[axis]) return;
        const [low, high] = this.ends(axis);
        const shares = ends[axis].map((share) => Math.max(0, Math.min(1, share))).sort((a, b) => a - b);
        this.setDomain(axis, shares.map((share) => low + (high - low) * share));
      });
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const arrow = ARROWS[event.key];
      if (arrow && event.shiftKey) this.pan({ x: 0.2 * arrow[1], y: -0.2 * arrow[0] * (this.panel.y.down ? -1 : 1) });
      else if (arrow) this.step(...arrow);
      else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
      else if (event.key === "-") this.zoomBy(2);
      else if (event.key === "0") this.reset();
      else if (event.key === "Escape") this.leave();
      else return;
      event.preventDefault();
    }
  }

  class FigureChart {
    constructor(element, chart) {
      Object.assign(this, { element, chart, off: {} });
      const button = (words, label, act) => {
        const made = make("button", { type: "button", textContent: words, title: label, ariaLabel: `${label}: ${chart.title}` });
        made.addEventListener("click", act);
        return made;
      };
      this.panels = chart.panels.map((panel, number) => new PanelChart(this, panel, number));
      this.resetButton = button("Reset", "Reset zoom", () => this.panels.forEach((panel) => panel.reset()));
      this.resetButton.disabled = true;
      const zooms = this.panels.some((panel) => panel.zoomable().length);
      const tools = make("div", { className: "tools" }, ...(zooms ? [
        button("+", "Zoom in", () => this.panels.forEach((panel) => panel.zoomBy(0.5))),
        button("−", "Zoom out", () => this.panels.forEach((panel) => panel.zoomBy(2))), this.resetButton] : []));
      this.keys = chart.legend.map((key, group) => {
        const made = make("button", { type: "button", className: "key", ariaPressed: "true", title: "Show or hide" }, swatch(key), key.name);
        made.addEventListener("click", () => this.toggle(group));
        return made;
      });
      const legend = make("div", { className: "legend", role: "group", ariaLabel: "Series" }, ...(chart.legend_title ? [make("span", { textContent: `${chart.legend_title}:` })] : []), ...this.keys);
      const grid = make("div", { className: "panels" }, ...this.panels.map((panel) => panel.element));
      const widths = chart.widths.length ? chart.widths : Array(chart.columns).fill(1);
      grid.style.setProperty("--columns", widths.map((width) => `minmax(0, ${width}fr)`).join(" "));
      if (chart.heading) element.append(make("p", { className: "chart-title", textContent: chart.heading }));
      element.append(make("div", { className: "chart-head" }, legend, tools), grid);
      if (chart.drawn < chart.points) {
        element.append(make("p", { className: "chart-note dropped", textContent: `${chart.drawn.toLocaleString("en-US")} of ${chart.points.toLocaleString("en-US")} points are drawn.` }));
      }
      for (const line of chart.note.split("\n").filter(Boolean)) element.append(make("p", { className: "chart-note", textContent: line }));
      element.append(this.values());
    }

    async draw() {
      for (const panel of this.panels) await panel.draw();
      this.element.dataset.drawn = "true";
    }

    toggle(group) {
      this.off = { ...this.off, [group]: !this.off[group] };
      this.keys[group].ariaPressed = String(!this.off[group]);
      for (const panel of this.panels) {
        panel.leave();
        panel.view?.signal("off", this.off).runAsync();
      }
    }

    zoomed() { this.resetButton.disabled = !this.panels.some((panel) => panel.isZoomed()); }

    leaveOthers(panel) { for (const other of this.panels) if (other !== panel) other.leave(); }

    // Every value that hover shows, made when it is asked for.
    values() {
      const details = make("details", { className: "values" }, make("summary", { textContent: "Values" }));
      details.addEventListener("toggle", () => {
        if (!details.open || details.querySelector("table")) return;
        for (const { panel } of this.panels) details.append(this.table(panel));
      });
      return details;
    }

    table(panel) {
      const shownSeries = panel.series.filter((series) => !series.silent);
      const body = make("tbody");
      for (const series of shownSeries) {
        for (const row of rows(series)) {
          if ("y" in row && !known(row.y)) continue;
          body.append(make("tr", {}, ...[series.name, ...said(panel, series, row)].map((text) => make("td", { textContent: text }))));
        }
      }
      const first = shownSeries.find((series) => series.kind !== "rule" && series.kind !== "band") ?? shownSeries[0];
      const head = make("tr", {}, ...["series", ...(first ? headings(panel, first) : [])].map((text) => make("th", { scope: "col", textContent: text })));
      const table = make("table", {}, ...(panel.title ? [make("caption", { textContent: panel.title })] : []), make("thead", {}, head), body);
      return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Values: ${panel.title || this.chart.title}` }, table);
    }
  }

  // A chart is drawn when it comes near the screen, or when its fold is opened.
  const waiting = new Map();
  const start = (element) => {
    const chart = waiting.get(element);
    if (!chart) return null;
    waiting.delete(element);
    watcher.unobserve(element);
    return chart.draw().catch((error) => {
      console.error(error);
      element.append(make("p", { className: "chart-note", textContent: `The chart could not be drawn; see ${chart.chart.name}.png.` }));
    });
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) start(entry.target);
  }, { rootMargin: "600px" });
  document.querySelectorAll(".chart").forEach((element, place) => {
    waiting.set(element, new FigureChart(element, charts[place]));
    watcher.observe(element);
  });
  window.addEventListener("beforeprint", () => { for (const element of [...waiting.keys()]) start(element); });
};
