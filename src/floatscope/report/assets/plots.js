// Panels as SVG: lines with intervals, stacked bars, cells, drawn from the JSON that report/charts.py makes.
// Colours are CSS variables, so both themes need one drawing. What hovering tells is in data-tip.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.plots) return;

  const SVG = "http://www.w3.org/2000/svg";
  const TITLE = 24, SHADES = 40;
  const DASHES = { random: "4 3", untrained: "1.5 2.5", published: "7 3", oracle: "4 3", "closed-book": "1.5 2.5" };

  function draw(tag, attributes, parent, text) {
    const element = document.createElementNS(SVG, tag);
    for (const name in attributes) if (attributes[name] !== undefined) element.setAttribute(name, attributes[name]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const text = size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 0.01 || size === 0 ? value.toFixed(3).replace(/0{1,2}$/, "") : value.toExponential(1);
    return text.replace("-", "−").replace(/\.$/, "");
  }

  // Round tick values that cover a range with at most about `count` steps.
  function ticks(low, high, count) {
    const raw = (high - low || 1) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw) * power;
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
    return { found, digits: Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0))) };
  }

  function shape(name, x, y, size) {
    const r = size;
    const paths = {
      circle: `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
      square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
      diamond: `M${x},${y - 1.3 * r}L${x + 1.3 * r},${y}L${x},${y + 1.3 * r}L${x - 1.3 * r},${y}z`,
      triangle: `M${x},${y - 1.2 * r}L${x + 1.1 * r},${y + r}L${x - 1.1 * r},${y + r}z`,
    };
    return paths[name];
  }
  const SHAPES = ["circle", "square", "triangle", "diamond"];
  const shapeOf = (colour) => SHAPES[(colour - 1) % SHAPES.length];

  // Lines with intervals; x is a number or a name.
  function lines(group, panel, box) {
    const all = panel.series.flatMap((one) => one.points);
    const names = typeof all[0][0] === "string" ? [...new Set(all.map((point) => point[0]))] : null;
    const xs = names || [...new Set(all.map((point) => point[0]))].sort((a, b) => a - b);
    let [low, high] = panel.range || [Infinity, -Infinity];
    if (!panel.range) for (const point of all) for (const value of point.slice(1)) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > 0 && low < 0.5 * high) low = 0;
    if (panel.zero) low = Math.min(0, low);
    if (high - low < 1e-12) { low -= 0.5; high += 0.5; }
    const marks = ticks(low, high, 4);
    low = Math.min(low, marks.found[0]);
    high = Math.max(high, marks.found[marks.found.length - 1]);
    const left = box.x + 42, right = box.x + box.width - 8, top = box.y + TITLE, bottom = box.y + box.height - (names ? 36 : 32);
    const first = names ? 0 : xs[0], last = names ? names.length - 1 : xs[xs.length - 1];
    const inset = names ? (right - left) / (2 * names.length) : 6;
    const across = (x) => left + inset + ((names ? names.indexOf(x) : x) - first) / (last - first || 1) * (right - left - 2 * inset);
    const up = (y) => bottom - (y - low) / (high - low) * (bottom - top);
    for (const value of marks.found) {
      draw("line", { class: value === 0 ? "fs-zero" : "fs-grid", x1: left, x2: right, y1: up(value), y2: up(value) }, group);
      draw("text", { class: "fs-tick", x: left - 6, y: up(value) + 3.5, "text-anchor": "end" }, group, value.toFixed(marks.digits).replace("-", "−"));
    }
    const every = Math.ceil(xs.length / Math.max(2, Math.floor((right - left) / (names ? 44 : 26))));
    xs.forEach((x, number) => {
      if (number % every === 0) draw("text", { class: "fs-tick", x: across(x), y: bottom + 15, "text-anchor": "middle" }, group, x);
    });
    draw("text", { class: "fs-axis", x: (left + right) / 2, y: bottom + 29, "text-anchor": "middle" }, group, panel.x);
    const path = (points) => points.map((point, number) => `${number ? "L" : "M"}${across(point[0]).toFixed(1)},${up(point[1]).toFixed(1)}`).join("");
    for (const one of panel.series.filter((other) => other.control)) {
      const lone = one.points.length === 1 ? `m-7,0h14` : "";
      draw("path", { class: `fs-control fs-c-${one.control} fs-s-${one.colour}`, d: path(one.points) + lone, "stroke-dasharray": DASHES[one.control] }, group);
    }
    const own = panel.series.filter((other) => !other.control);
    for (const one of own) {
      const known = one.points.filter((point) => point[2] !== null && point[2] !== undefined && point[3] !== null);
      if (known.length > 1 && !names) {
        const edge = known.map((point) => [point[0], point[3]]).concat(known.slice().reverse().map((point) => [point[0], point[2]]));
        draw("path", { class: `fs-band fs-s-${one.colour}`, d: path(edge) + "z" }, group);
      } else for (const point of known) draw("line", { class: `fs-range fs-s-${one.colour}`, x1: across(point[0]), x2: across(point[0]), y1: up(point[2]), y2: up(point[3]) }, group);
      draw("path", { class: `fs-line fs-s-${one.colour}`, d: path(one.points) }, group);
    }
    for (const one of own) for (const point of one.points) {
      const beside = panel.series.filter((other) => other.control && other.colour === one.colour)
        .map((other) => [other.control, other.points.find((known) => known[0] === point[0])]).filter(([, known]) => known);
      const range = point[2] !== null && point[2] !== undefined ? ` [${short(point[2])}, ${short(point[3])}]` : "";
      const tip = `${one.name}, ${panel.x} ${point[0]}: ${short(point[1])}${range}` + beside.map(([name, known]) => `\n${name}: ${short(known[1])}`).join("");
      draw("path", { class: `fs-point fs-s-${one.colour}`, d: shape(shapeOf(one.colour), across(point[0]), up(point[1]), 2.8) }, group);
      draw("circle", { class: `fs-hit fs-s-${one.colour}`, cx: across(point[0]), cy: up(point[1]), r: 9, "data-tip": tip }, group);
    }
  }

  // Stacked shares in groups: the first bar full, its controls pale.
  function bars(group, panel, box) {
    const left = box.x + 42, right = box.x + box.width - 4, top = box.y + TITLE, bottom = box.y + box.height - 74;
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      const y = bottom - value * (bottom - top);
      draw("line", { class: value ? "fs-grid" : "fs-zero", x1: left, x2: right, y1: y, y2: y }, group);
      draw("text", { class: "fs-tick", x: left - 6, y: y + 3.5, "text-anchor": "end" }, group, value * 100 + " %");
    }
    const width = (right - left) / panel.groups.length;
    panel.groups.forEach((one, number) => {
      const start = left + number * width + 5, each = (width - 10) / Math.max(1, one.bars.length);
      one.bars.forEach((bar, place) => {
        let height = 0;
        const x = start + place * each + 1;
        draw("rect", { class: "fs-under", x, width: Math.max(2, each - 3), y: top, height: bottom - top }, group);
        for (const [name, share] of bar.parts) {
          draw("rect", {
            class: "fs-bar" + (bar.faint ? " fs-faint" : ""), x, width: Math.max(2, each - 3), y: bottom - (height + share) * (bottom - top),
            height: Math.max(0, share * (bottom - top)), style: `fill: var(--fs-class-${name})`, "data-tip": `${panel.title}, ${one.name}, ${bar.name}\n${name}: ${(100 * share).toFixed(1)} %`,
          }, group);
          height += share;
        }
        const at = x + each / 2 - 1;
        draw("text", { class: "fs-tick" + (bar.faint ? "" : " fs-strong-text"), x: at, y: bottom + 8, "text-anchor": "end", transform: `rotate(-55 ${at} ${bottom + 8})` }, group, bar.name);
      });
      draw("text", { class: "fs-axis", x: left + (number + 0.5) * width, y: bottom + 68, "text-anchor": "middle" }, group, one.name);
    });
  }

  // Room for the names of rows.
  function heatLeft(panel) {
    return Math.max(34, 24 + 6.2 * Math.max(...panel.rows.map((name) => name.length)));
  }

  function heatHeight(panel, width) {
    const across = (width - heatLeft(panel) - 4) / panel.columns.length;
    return panel.wide ? Math.max(6, Math.min(16, 150 / panel.rows.length)) : Math.max(9, Math.min(26, across));
  }

  // Thousands of cells as one path for each of a few shades; what a cell tells is looked up where the pointer is.
  function many(group, panel, left, top, wide, tall) {
    const paths = new Map(), values = new Map();
    for (const [row, column, value] of panel.cells) {
      const shade = Math.round(SHADES * Math.max(0, Math.min(1, value / (panel.top || 1))));
      paths.set(shade, (paths.get(shade) || "") + `M${(left + column * wide).toFixed(1)},${(top + row * tall).toFixed(1)}h${(wide + 0.1).toFixed(2)}v${tall.toFixed(2)}h${(-wide - 0.1).toFixed(2)}z`);
      values.set(row * panel.columns.length + column, value);
    }
    for (const [shade, d] of paths) if (shade) draw("path", { class: "fs-cell", "fill-opacity": (shade / SHADES).toFixed(3), d }, group);
    const anchors = new Set(panel.marks.map(([row, column]) => row * panel.columns.length + column));
    const cover = draw("rect", { class: "fs-hit", x: left, y: top, width: wide * panel.columns.length, height: tall * panel.rows.length, "data-tip": panel.title }, group);
    cover.tipAt = (event) => {
      const box = cover.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * panel.rows.length), column = Math.floor(((event.clientX - box.left) / box.width) * panel.columns.length);
      const place = row * panel.columns.length + column;
      return `${panel.title}\n“${panel.names[column]}”, ${panel.x} ${panel.columns[column]}, ${panel.y} ${panel.rows[row]}: ${short(values.get(place))}${anchors.has(place) ? ", anchor" : ""}`;
    };
  }

  function heat(group, panel, box) {
    const left = box.x + heatLeft(panel), top = box.y + TITLE;
    const tall = heatHeight(panel, box.width);
    const full = box.width - heatLeft(panel) - 4;
    const wide = panel.wide ? full / panel.columns.length : Math.min(64, full / panel.columns.length);
    const width = wide * panel.columns.length, height = tall * panel.rows.length;
    draw("rect", { class: "fs-bed", x: left, y: top, width, height }, group);
    if (panel.names) many(group, panel, left, top, wide, tall);
    else for (const [row, column, value, tip] of panel.cells) {
      if (value === null) continue;
      draw("rect", {
        class: "fs-cell" + (panel.faint ? " fs-faint" : ""), x: (left + column * wide).toFixed(2), y: (top + row * tall).toFixed(2), width: (wide - 1).toFixed(2),
        height: (tall - 1).toFixed(2), "fill-opacity": Math.max(0, Math.min(1, value / (panel.top || 1))).toFixed(3), "data-tip": `${panel.section ? panel.section + ", " : ""}${panel.title}\n${tip}`,
      }, group);
    }
    for (const [row, column] of panel.marks) {
      const size = panel.mark === "square" ? Math.max(0.8, Math.min(2.4, wide / 3, tall / 3)) : Math.max(2, Math.min(4, wide / 5));
      draw("path", { class: panel.mark === "square" ? "fs-anchor-mark" : "fs-gold-mark", d: shape(panel.mark || "diamond", left + (column + 0.5) * wide, top + (row + 0.5) * tall, size) }, group);
    }
    const label = (names, count, place) => names.forEach((name, number) => { if (number % count === 0) place(name, number); });
    label(panel.rows, Math.ceil(11 / tall), (name, row) => draw("text", { class: "fs-tick", x: left - 5, y: top + (row + 0.5) * tall + 3.5, "text-anchor": "end" }, group, name));
    label(panel.columns, Math.ceil(24 / wide), (name, column) => draw("text", { class: "fs-tick", x: left + (column + 0.5) * wide, y: top + height + 13, "text-anchor": "middle" }, group, name));
    draw("text", { class: "fs-axis", x: left + width / 2, y: top + height + 27, "text-anchor": "middle" }, group, panel.x);
    const middle = top + height / 2;
    draw("text", { class: "fs-axis", x: box.x + 10, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${box.x + 10} ${middle})` }, group, panel.y);
  }

  const KINDS = { lines: { draw: lines, least: 225 }, bars: { draw: bars, least: 280 }, heat: { draw: heat, least: 0 } };

  function least(panel) {
    if (panel.wide) return 400;
    return KINDS[panel.kind].least || Math.max(96, heatLeft(panel) + 6 + 13 * panel.columns.length);
  }

  function tallness(panel, width) {
    if (panel.kind === "lines") return width > 400 ? 240 : 196;
    if (panel.kind === "bars") return 260;
    return TITLE + heatHeight(panel, width) * panel.rows.length + 34;
  }

  floatscope.plots = { draw, short, shape, shapeOf, least, tallness, DASHES, SVG, paint: (group, panel, box) => KINDS[panel.kind].draw(group, panel, box) };
})();
