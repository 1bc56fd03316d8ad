// Figures: charts drawn by Vega when they come near, a legend that switches marks, SVG and CSV to save, a table of the numbers.
// reports/cards.py has laid out the room for every panel. Expressions are interpreted, never evaluated: the page's policy forbids eval.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Figure) return;

  const TABLE_ROWS = 200, MANY_MARKS = 1500, CHANNELS = ["color", "shape", "strokeDash"];
  const OPTIONS = { ast: true, actions: false, mode: "vega-lite", defaultStyle: false };

  class Figure {
    constructor(root) {
      this.root = root;
      this.view = 0;
      this.hidden = new Set();
      this.charts = [...root.querySelectorAll(".fs-chart")];
      this.drawn = this.charts.map(() => ({ theme: null, views: [] }));
      root.querySelectorAll("[data-action]").forEach((button) => button.addEventListener("click", () => this.act(button.dataset.action)));
      root.querySelectorAll(".fs-figure-legend button").forEach((button) => button.addEventListener("click", () => this.toggle(button)));
      const box = root.querySelector(".fs-published input");
      if (box) box.addEventListener("change", () => this.show(box.checked ? this.charts.length - 1 : 0));
      this.layer = root.querySelector(".fs-layer");
      if (this.layer) this.layer.addEventListener("change", () => this.show(Number(this.layer.value)));
      const details = root.querySelector(".fs-data");
      details.addEventListener("toggle", () => { if (details.open) this.fillTable(); });
      window.addEventListener("floatscope-theme", () => { if (this.near) this.draw(); });
      this.observer = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        this.observer.disconnect();
        this.near = true;
        this.draw();
      }, { rootMargin: "400px" });
      this.observer.observe(root);
    }

    get data() { return (this.parsed ??= JSON.parse(this.root.querySelector("script").textContent)); }

    get fields() { return [...new Set([...this.charts[this.view].querySelectorAll("[data-field]")].map((button) => button.dataset.field))]; }

    show(view) {
      this.view = view;
      this.charts.forEach((chart, place) => { chart.hidden = place !== view; });
      this.draw();
      if (this.root.querySelector(".fs-data").open) this.fillTable();
    }

    // Draw the panels of the view that is shown, unless they are there in this theme.
    async draw() {
      const drawn = this.drawn[this.view], theme = floatscope.theme();
      if (drawn.theme === theme) return;
      drawn.theme = theme;
      drawn.views.forEach((found) => found.finalize());
      const spec = this.spec(false), { config, datasets, params } = spec;
      const rooms = [...this.charts[this.view].querySelectorAll(".fs-view")];
      const many = Object.values(datasets).some((rows) => rows.length > MANY_MARKS);
      const made = panels(spec).map((panel, place) => {
        const plot = { ...panel };
        delete plot.title; // the page has it
        const description = rooms[place].getAttribute("aria-label");
        const whole = { config, datasets, params, padding: { left: 2, top: 6, right: 10, bottom: 4 }, background: "transparent", description, ...plot, ...fitted(rooms[place]) };
        return window.vegaEmbed(rooms[place], whole, { ...OPTIONS, renderer: many ? "canvas" : "svg", tooltip: tell });
      });
      drawn.views = await Promise.all(made);
      this.root.dataset.drawn = theme;
    }

    // The chart as Vega-Lite with rows in place of CSV, in the colours of the theme, and marks that can be switched off.
    spec(alone) {
      const { spec, tables } = this.data.views[this.view];
      const text = JSON.stringify(spec);
      const dark = floatscope.theme() === "dark" ? this.data.dark : {};
      const chart = JSON.parse(text.replace(/#[0-9a-f]{6}/g, (colour) => dark[colour] || colour));
      const kinds = {}, fields = this.fields;
      const filter = fields.map((field) => `indexof(hidden, ${JSON.stringify(`${field}=`)} + datum[${JSON.stringify(field)}]) < 0`).join(" && ");
      walk(chart, (node) => {
        if (node.data && node.data.format) {
          kinds[node.data.name] = node.data.format.parse;
          delete node.data.format;
        }
        if (node.mark && filter) node.transform = [...(node.transform || []), { filter }];
        if (node.encoding && !alone) for (const channel of CHANNELS) {
          const one = node.encoding[channel];
          if (one && fields.includes(one.field) && one.scale && one.scale.domain) one.legend = null;
        }
      });
      chart.datasets = {};
      for (const name in tables) {
        if (kinds[name]) chart.datasets[name] = records(tables[name], kinds[name]);
        else if (Array.isArray(tables[name])) chart.datasets[name] = tables[name]; // rows, as altair writes them
      }
      chart.params = [...(chart.params || []), { name: "hidden", value: [...this.hidden] }];
      return chart;
    }

    toggle(button) {
      const key = `${button.dataset.field}=${button.dataset.value}`;
      this.hidden.has(key) ? this.hidden.delete(key) : this.hidden.add(key);
      for (const other of this.root.querySelectorAll("[data-field]")) {
        if (`${other.dataset.field}=${other.dataset.value}` === key) other.setAttribute("aria-pressed", String(!this.hidden.has(key)));
      }
      for (const { views } of this.drawn) for (const { view } of views) view.signal("hidden", [...this.hidden]).runAsync();
    }

    async act(action) {
      const other = this.layer ? `-layer-${this.layer.selectedOptions[0].text}` : "-as-published";
      const name = this.data.name + (this.view ? other : "");
      if (action === "csv") saveCsv(name, this.data.views[this.view].tables.table);
      if (action === "svg") {
        const found = await window.vegaEmbed(document.createElement("div"), this.spec(true), { ...OPTIONS, renderer: "svg" });
        save(`${name}.svg`, "image/svg+xml", await found.view.toSVG());
        found.finalize();
      }
    }

    fillTable() {
      const [head, ...rows] = parse(this.data.views[this.view].tables.table);
      const table = document.createElement("table");
      [head, ...rows.slice(0, TABLE_ROWS)].forEach((cells, number) => {
        const line = table.insertRow();
        for (const cell of cells) {
          const element = document.createElement(number ? "td" : "th");
          if (!number) element.scope = "col";
          element.textContent = number && cell !== "" && !Number.isNaN(Number(cell)) ? short(Number(cell)) : cell;
          line.append(element);
        }
      });
      const more = rows.length > TABLE_ROWS;
      table.createCaption().textContent = this.data.title + (more ? `: the first ${TABLE_ROWS} of ${rows.length} rows; the CSV has all.` : "");
      this.root.querySelector(".fs-scroll").replaceChildren(table);
    }
  }

  function walk(node, visit) {
    if (!node || typeof node !== "object") return;
    if (!Array.isArray(node)) visit(node);
    Object.values(node).forEach((part) => walk(part, visit));
  }

  // The panels of joined charts, in the order in which the page has room for them.
  function panels(spec) {
    if (spec.vconcat) return spec.vconcat.flatMap(panels);
    const joined = spec.concat || spec.hconcat;
    if (!joined) return [spec];
    return spec.data ? joined.map((panel) => ({ data: spec.data, ...panel })) : joined;
  }

  // A plot fills its room; a chart of several plots (facets) keeps the sizes it came with.
  function fitted(room) {
    if (!room.style.height) return {};
    return { width: "container", height: parseFloat(room.style.height), autosize: { type: "fit", contains: "padding" } };
  }

  function short(value) {
    const size = Math.abs(value);
    const text = Number.isInteger(value) ? String(value) : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 0.01 ? value.toFixed(3).replace(/0{1,2}$/, "") : value.toExponential(1);
    return text.replace("-", "−").replace(/\.$/, "");
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

  function records(csv, kinds) {
    const [head, ...rows] = parse(csv);
    const read = { number: (text) => (text === "" ? null : Number(text)), boolean: (text) => (text === "" ? null : text === "true") };
    const readers = head.map((name) => read[kinds[name]] || ((text) => (text === "" ? null : text)));
    return rows.map((cells) => Object.fromEntries(head.map((name, place) => [name, readers[place](cells[place])])));
  }

  // A name that a spreadsheet would read as a formula is saved after an apostrophe.
  function saveCsv(name, csv) {
    const harmless = (cell) => (/^[=+\-@\t\r]/.test(cell) && Number.isNaN(Number(cell)) ? `'${cell}` : cell);
    const quoted = (cell) => (/[",\n\r]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    const lines = parse(csv).map((cells) => `${cells.map((cell) => quoted(harmless(cell))).join(",")}\n`);
    save(`${name}.csv`, "text/csv", lines.join(""));
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
  function tell(_handler, event, _item, value) {
    if (!value) { if (tip) tip.hidden = true; return; }
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "floatscope fs-tip";
      tip.setAttribute("role", "tooltip");
      document.body.append(tip);
    }
    const lines = typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}: ${one === null || one === "null" ? "–" : one}`) : [value];
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16) + "px";
  }

  floatscope.Figure = Figure;
  floatscope.saveCsv = saveCsv;
  floatscope.figures = [...document.querySelectorAll("figure.fs-figure")].map((root) => new Figure(root));
})();
