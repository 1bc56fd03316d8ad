// Figures: panels in rows, a legend that switches lines, SVG and CSV to save, a table of the numbers. Needs plots.js before it.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Figure) return;

  const { draw, short, shape, shapeOf, least, tallness, DASHES, SVG, paint } = floatscope.plots;
  const GAP = 22, HEADING = 24, TABLE_ROWS = 200;
  const CONTROL_WORDS = { uniform: "uniform attention", random: "random positions", untrained: "untrained model", published: "as published" };
  const CONTROL_ORDER = ["uniform", "random", "untrained", "published", "oracle", "closed-book", "guess"];
  const KEPT_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

  // As many columns as fit, in rows of equal length where that is possible.
  function arrange(panels, width, hint) {
    const need = Math.max(...panels.map(least));
    const columns = Math.max(1, Math.min(hint || panels.length, Math.floor((width + GAP) / (need + GAP))));
    return Math.ceil(panels.length / Math.ceil(panels.length / columns));
  }

  // Panels in rows; a section begins a row of its own, with its name above.
  function rowsOf(panels, columns) {
    const rows = [];
    panels.forEach((panel, number) => {
      const begins = panel.section && (!number || panels[number - 1].section !== panel.section);
      if (begins || !rows.length || rows[rows.length - 1].length === columns) {
        rows.push([]);
        if (begins) rows[rows.length - 1].heading = panel.section;
      }
      rows[rows.length - 1].push(panel);
    });
    return rows;
  }

  class Figure {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.view = 0;
      this.hidden = new Set();
      this.chart = root.querySelector(".fs-chart");
      this.legend = root.querySelector(".fs-figure-legend");
      root.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", () => this.act(button.dataset.action)));
      const box = root.querySelector(".fs-published input");
      if (box) box.addEventListener("change", () => { this.view = box.checked ? 1 : 0; this.paint(); });
      const details = root.querySelector(".fs-data");
      if (details) details.addEventListener("toggle", () => { if (details.open) this.fillTable(details); });
      // The observer speaks before the first frame, so that a figure has its size when it is first seen.
      new ResizeObserver(() => { if (this.chart.clientWidth && this.chart.clientWidth !== this.width) this.paint(); }).observe(this.chart);
    }

    paint() {
      const { panels } = this.data.views[this.view];
      this.width = this.chart.clientWidth;
      const columns = arrange(panels, this.width, this.data.across);
      const width = Math.min((this.width - GAP * (columns - 1)) / columns, panels[0].wide ? Infinity : 560);
      this.svg = draw("svg", { class: "fs-svg", width: this.width, role: "img", "aria-label": this.root.dataset.alt });
      let y = 0;
      for (const row of rowsOf(panels, columns)) {
        if (row.heading) {
          draw("text", { class: "fs-plot-title", x: 2, y: y + 16 }, this.svg, row.heading);
          y += HEADING;
        }
        const height = Math.max(...row.map((panel) => tallness(panel, width)));
        row.forEach((panel, place) => {
          const group = draw("g", { class: `fs-plot fs-plot-${panel.kind}` }, this.svg);
          const box = { x: place * (width + GAP), y, width, height };
          this.title(group, panel, box);
          paint(group, panel, box);
        });
        y += height + 12;
      }
      y -= 12;
      this.svg.setAttribute("height", y);
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${y}`);
      this.chart.replaceChildren(this.svg);
      this.applyHidden();
      this.paintLegend(panels);
    }

    title(group, panel, box) {
      const room = Math.floor((box.width - 4) / 6.6);
      const text = panel.title.length > room ? panel.title.slice(0, room - 1) + "…" : panel.title;
      draw("text", { class: panel.section ? "fs-axis" : "fs-plot-title", x: box.x + 2, y: box.y + 13 }, group, text);
      const note = panel.kind === "heat" ? panel.note : panel.y;
      if (note && text.length + note.length + 4 < room) draw("text", { class: "fs-axis", x: box.x + box.width - 8, y: box.y + 13, "text-anchor": "end" }, group, note);
    }

    // Names of models and controls; each can be switched off and on.
    entries(panels) {
      const found = new Map();
      for (const panel of panels) for (const one of panel.series || []) if (!one.control) found.set(`s-${one.colour}`, { name: one.name, colour: one.colour });
      for (const panel of panels) for (const one of panel.series || []) if (one.control) found.set(`c-${one.control}`, { name: CONTROL_WORDS[one.control] || one.control, control: one.control });
      const place = ([, entry]) => (entry.control ? 1 + CONTROL_ORDER.indexOf(entry.control) : 0);
      return [...found].sort((one, other) => place(one) - place(other)).map(([key, entry]) => ({ key, ...entry }));
    }

    paintLegend(panels) {
      this.legend.replaceChildren();
      for (const entry of this.entries(panels)) {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!this.hidden.has(entry.key)));
        const icon = draw("svg", { width: 26, height: 12, "aria-hidden": "true" }, button);
        if (entry.control) draw("path", { class: "fs-control", d: "M1,6h24", "stroke-dasharray": DASHES[entry.control] }, icon);
        else {
          draw("path", { class: `fs-line fs-s-${entry.colour}`, d: "M1,6h24" }, icon);
          draw("path", { class: `fs-point fs-s-${entry.colour}`, d: shape(shapeOf(entry.colour), 13, 6, 3.4) }, icon);
        }
        button.append(entry.name);
        button.addEventListener("click", () => this.hide(entry.key, button));
        this.legend.append(button);
      }
      for (const [name, colour] of this.data.legend) {
        const entry = document.createElement("span");
        const icon = draw("svg", { width: 12, height: 12, "aria-hidden": "true" }, entry);
        draw("rect", { width: 12, height: 12, rx: 2, style: `fill: ${colour}` }, icon);
        entry.append(name);
        this.legend.append(entry);
      }
    }

    hide(key, button) {
      if (!this.hidden.delete(key)) this.hidden.add(key);
      button.setAttribute("aria-pressed", String(!this.hidden.has(key)));
      this.applyHidden();
    }

    applyHidden() {
      this.svg.querySelectorAll(".fs-control, .fs-line, .fs-band, .fs-range, .fs-point, .fs-hit").forEach((mark) => {
        mark.style.display = [...this.hidden].some((key) => mark.classList.contains(`fs-${key}`)) ? "none" : "";
      });
    }

    act(action) {
      const name = this.data.name + (this.view ? "-as-published" : "");
      if (action === "svg") save(`${name}.svg`, "image/svg+xml", this.standalone());
      if (action === "csv") save(`${name}.csv`, "text/csv", this.data.views[this.view].csv);
    }

    // The drawing with its colours written into it, a title above and the legend below.
    standalone() {
      const copy = this.svg.cloneNode(true);
      const styles = getComputedStyle(this.root);
      const originals = this.svg.querySelectorAll("*"), copies = copy.querySelectorAll("*");
      originals.forEach((original, number) => {
        const computed = getComputedStyle(original);
        if (computed.display === "none" || original.classList.contains("fs-hit")) { copies[number].remove(); return; }
        const kept = KEPT_STYLES.map((name) => `${name}:${computed.getPropertyValue(name)}`).join(";");
        copies[number].setAttribute("style", kept);
        copies[number].removeAttribute("data-tip");
      });
      const height = Number(this.svg.getAttribute("height"));
      const outer = draw("svg", { xmlns: SVG, width: this.width + 32, height: height + 92, viewBox: `0 0 ${this.width + 32} ${height + 92}`, "font-family": "sans-serif" });
      draw("rect", { width: "100%", height: "100%", fill: styles.getPropertyValue("--fs-card") }, outer);
      draw("text", { x: 16, y: 30, "font-size": 16, "font-weight": 600, fill: styles.getPropertyValue("--fs-ink") }, outer, this.data.title);
      copy.setAttribute("x", 16);
      copy.setAttribute("y", 44);
      outer.append(copy);
      let x = 16;
      const swatches = this.entries(this.data.views[this.view].panels).filter((entry) => !this.hidden.has(entry.key)).map((entry) => [
        entry.name, entry.control ? styles.getPropertyValue("--fs-control") : styles.getPropertyValue(`--fs-series-${entry.colour}`), DASHES[entry.control],
      ]).concat(this.data.legend.map(([name, colour]) => [name, styles.getPropertyValue(colour.slice(4, -1)), undefined]));
      for (const [name, colour, dash] of swatches) {
        draw("line", { x1: x, x2: x + 20, y1: height + 70, y2: height + 70, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }, outer);
        draw("text", { x: x + 26, y: height + 74, "font-size": 12, fill: styles.getPropertyValue("--fs-ink") }, outer, name);
        x += 44 + 6.6 * name.length;
      }
      return new XMLSerializer().serializeToString(outer);
    }

    fillTable(details) {
      const rows = parse(this.data.views[this.view].csv);
      const table = document.createElement("table");
      rows.slice(0, TABLE_ROWS + 1).forEach((cells, number) => {
        const line = table.insertRow();
        for (const cell of cells) {
          const element = document.createElement(number ? "td" : "th");
          if (!number) element.scope = "col";
          element.textContent = number && cell !== "" && !Number.isNaN(Number(cell)) ? short(Number(cell)) : cell;
          line.append(element);
        }
      });
      const more = rows.length - 1 - TABLE_ROWS;
      const caption = table.createCaption();
      caption.textContent = more > 0 ? `${this.data.title}: the first ${TABLE_ROWS} of ${rows.length - 1} rows; the CSV has all.` : this.data.title;
      details.querySelector(".fs-scroll").replaceChildren(table);
    }
  }

  // CSV as RFC 4180 has it: quoted cells may hold commas, quotes and line ends.
  function parse(csv) {
    const rows = [];
    let row = [], cell = "", quoted = false;
    for (let i = 0; i < csv.length; i++) {
      const letter = csv[i];
      if (quoted && letter === '"' && csv[i + 1] === '"') { cell += '"'; i++; }
      else if (letter === '"') quoted = !quoted;
      else if (!quoted && (letter === "," || letter === "\n")) {
        row.push(cell);
        cell = "";
        if (letter === "\n") { rows.push(row); row = []; }
      } else cell += letter;
    }
    return rows;
  }

  function save(name, kind, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind + ";charset=utf-8" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // One box for what hovering tells, for the whole page.
  let tip = null;
  function tell(event) {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    if (!mark) { if (tip) tip.hidden = true; return; }
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "floatscope fs-tip";
      tip.setAttribute("role", "tooltip");
      document.body.append(tip);
    }
    tip.textContent = mark.tipAt ? mark.tipAt(event) : mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16) + "px";
  }
  document.addEventListener("pointerover", tell);
  document.addEventListener("pointermove", (event) => { if (event.target.tipAt) tell(event); });

  floatscope.Figure = Figure;
  floatscope.save = save;
})();
