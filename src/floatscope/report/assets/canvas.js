// The canvas of one run: its numbers by step, layer and token, and its tokens as text, shaded by what they receive.
// The data are described in docs/howto/report.md and made by report/player.py; only the shade is computed here.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Panel) return;

  const LEVELS = 65535;
  const NAMES = { query: "question", before: "text before", after: "text after" };
  const BAND = 5; // pixels below the map, where the answer's slots are marked
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, className, parent, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function percent(value) {
    return (100 * value).toFixed(value >= 0.0995 ? 1 : 2) + " %";
  }

  const regionName = (label) => NAMES[label] || label.replace("doc", "document");

  function bytesOf(data) {
    const text = atob(data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  function whole(data) {
    const view = new DataView(bytesOf(data).buffer);
    return Array.from({ length: view.byteLength / 2 }, (_, place) => view.getUint16(2 * place, true));
  }

  // Numbers by their scale; shades are bytes on a square-root scale.
  function decode({ scale, root, data }) {
    if (root !== undefined) return Float32Array.from(bytesOf(data), (level) => root * (level / 255) ** 2);
    return Float32Array.from(whole(data), (level) => (scale * level) / LEVELS);
  }

  // One model on one sample: numbers by step, layer and token, and which slots are tokens when.
  class Run {
    constructor(data) {
      this.data = data;
      this.tokens = data.tokens.slice();
      this.slots = new Map(data.slots.map((token, slot) => [token, slot]));
      this.commitStep = data.commit_step?.slice() ?? []; // a live run has nothing yet of what steps bring
      this.confidence = data.confidence?.slice() ?? [];
      this.special = new Set(data.special);
      this.glued = new Set(data.glued);
      this.steps = data.steps?.slice() ?? [];
      this.frames = [];
      this.found = new Map(); // peaks and the like, until a step comes
      this.history = data.events && this.replay(data.events); // where tokens were changed or withdrawn
    }

    // For every step the state and the text of each slot after it.
    replay(events) {
      let now = this.data.slots.map(() => ["open", ""]);
      return events.map((step) => {
        now = now.map(([state, text]) => [state === "open" || state === "renoised" ? "open" : "token", text]);
        for (const [slot, state, text] of step) now[slot] = [state, text];
        return now;
      });
    }

    push(step) {
      const number = this.steps.push(step) - 1;
      for (const [slot, text, confidence, kind] of step.commits || []) {
        const token = this.data.slots[slot];
        this.tokens[token] = text;
        if (kind === "special") this.special.add(token);
        if (kind === "glued") this.glued.add(token);
        this.commitStep[slot] = number;
        this.confidence[slot] = confidence;
      }
      this.found.clear();
    }

    get last() { return this.steps.length - 1; }

    // Steps there will be: those that are known, and for a live run those still to come.
    get foreseen() { return Math.max(this.steps.length, this.data.foreseen || 0); }

    layerName(layer) { return this.data.layer_names?.[layer] ?? layer; }

    has(view) { return view === "slot" ? Boolean(this.data.commit) : view === "all" || Boolean(this.steps[0]?.[view]); }

    frame(step) {
      const made = (this.frames[step] ||= { anchors: this.steps[step].anchors.map((places) => new Set(places)) });
      return made;
    }

    anchors(step, layer) { return this.frame(step).anchors[layer]; }

    // What the tokens receive at a step: from all rows, or as the view says.
    row(step, layer, look) {
      if (look?.view === "slot") return this.slotRow(layer, look);
      const view = look && this.has(look.view) ? look.view : "all";
      const values = (this.frame(step)[view] ||= decode(this.steps[step][view === "all" ? "received" : view]));
      const width = values.length / this.data.layers;
      return values.subarray(layer * width, (layer + 1) * width);
    }

    // The strongest keys of the row that filled a slot, [token, mass], and its mass on each region.
    commit(layer, { slot, head }) {
      const { commit } = this.data;
      if (!commit || slot === null || slot >= this.data.slots.length) return { keys: [], regions: [] };
      const made = (this.decoded ||= { keys: whole(commit.keys), mass: decode(commit.mass), regions: decode(commit.regions) });
      const at = (slot * this.data.layers + layer) * commit.heads + Math.min(head, commit.heads - 1);
      const part = (values, size) => Array.from(values.slice(at * size, (at + 1) * size));
      const mass = part(made.mass, commit.ranks);
      const keys = part(made.keys, commit.ranks).map((token, rank) => [token, mass[rank]]).filter((key) => key[1] > 0);
      return { keys, regions: part(made.regions, commit.names.length) };
    }

    slotRow(layer, look) {
      const row = new Float32Array(this.tokens.length);
      for (const [token, mass] of this.commit(layer, look).keys) row[token] = mass;
      return row;
    }

    // The share of each region's tokens in what these rows look at, in the order of regionNames.
    regions(step, layer, look) {
      if (look.view === "slot") return this.commit(layer, look).regions;
      const { by_region: by } = this.data;
      if (!by) return [];
      const mass = (this.masses ||= decode(by.mass)), view = { all: 0, answer: 1, masked: 2 }[look.view];
      const at = ((view * this.steps.length + step) * this.data.layers + layer) * by.names.length;
      return Array.from(mass.slice(at, at + by.names.length));
    }

    received(step, layer, token, look) { return this.row(step, layer, look)[token] || 0; }

    isAnchor(step, layer, token) { return this.anchors(step, layer).has(token); }

    remember(key, find) {
      if (!this.found.has(key)) this.found.set(key, find());
      return this.found.get(key);
    }

    // The token that receives most in this layer over all steps.
    strongest(layer, look) {
      return this.remember(["strongest", layer, Object.values(look || {})].join(), () => {
        const total = new Float64Array(this.tokens.length);
        for (let step = 0; step <= this.last; step++) this.row(step, layer, look).forEach((value, token) => { total[token] += value; });
        return total.indexOf(Math.max(...total));
      });
    }

    // The most that any token receives in this layer at any step: the darkest shade. One token can be left out.
    peak(layer, look, without = -1) {
      return this.remember(["peak", layer, Object.values(look || {}), without].join(), () => {
        let peak = 0;
        for (let step = 0; step <= this.last; step++) this.row(step, layer, look).forEach((value, token) => { if (value > peak && token !== without) peak = value; });
        return peak;
      });
    }

    // How many anchors the first step and the last do not have in common.
    exchanged(layer) {
      if (this.last < 1) return 0;
      const [first, last] = [0, this.last].map((step) => this.anchors(step, layer));
      return [...first].filter((token) => !last.has(token)).length + [...last].filter((token) => !first.has(token)).length;
    }

    // "token": was there before this step; "commits": becomes a token in it; "revised": becomes another one; "renoised":
    // is withdrawn; "open": not yet.
    state(token, step) {
      const slot = this.slots.get(token);
      if (slot === undefined) return "token";
      if (this.history) return this.history[Math.min(step, this.last)][slot][0];
      const when = this.commitStep[slot];
      if (when === null || when === undefined || when > step) return "open";
      return when === step ? "commits" : "token";
    }

    isOpen(token, step) { return ["open", "renoised"].includes(this.state(token, step)); }

    // What a token says after a step: a slot may hold several before its last.
    text(token, step) {
      const slot = this.slots.get(token);
      return this.history && slot !== undefined ? this.history[Math.min(step, this.last)][slot][1] : this.tokens[token];
    }

    // What the model would put into a slot that is open at a step: [slot, [[text, probability], ...], margin, entropy, KL].
    candidates(token, step) {
      return this.data.candidates?.[step]?.find(([slot]) => slot === this.slots.get(token));
    }

    label(token) {
      for (const [label, start, stop] of this.data.regions) if (token >= start && token < stop) return label;
      return "";
    }

    // The answer as it stands after a step, open slots as a low line.
    answer(step) {
      const { special, glued } = this;
      let text = "", open = false;
      for (const token of this.data.slots) {
        if (this.isOpen(token, step)) {
          if (!open) text += " ▁";
          open = true;
        } else if (!special.has(token)) {
          text += (glued.has(token) ? "" : " ") + this.text(token, step);
          open = false;
        }
      }
      return text.replace(/\s+/g, " ").trim();
    }
  }

  // One column: the canvas of a run.
  class Panel {
    constructor(player, parent, place) {
      this.player = player;
      this.root = make("section", "fs-panel", parent);
      this.head = make("header", "fs-panel-head", this.root);
      this.picker = make("select", "fs-model", this.head);
      this.picker.setAttribute("aria-label", `Model of panel ${place + 1}`);
      this.picker.addEventListener("change", () => player.choose(place, Number(this.picker.value)));
      this.about = make("span", "fs-about", this.head);
      this.verdict = make("span", "fs-verdict", this.head);
      this.map = make("canvas", "fs-map", this.root);
      this.map.setAttribute("role", "img");
      this.map.addEventListener("pointerdown", (event) => this.seek(event));
      this.scale = make("p", "fs-scale", this.root);
      this.status = make("p", "fs-status", this.root);
      this.bars = make("div", "fs-bars", this.root);
      this.bars.addEventListener("pointerdown", (event) => this.seekStrip(event));
      this.body = make("div", "fs-canvas", this.root);
      this.readout = make("p", "fs-readout", this.root);
      this.body.addEventListener("pointerover", (event) => this.point(event));
      this.body.addEventListener("focusin", (event) => this.point(event));
      this.body.addEventListener("click", (event) => this.pick(event));
      this.body.addEventListener("pointerleave", () => player.point(null));
    }

    point(event) {
      const chip = event.target.closest(".fs-token");
      if (chip) this.player.point(Number(chip.dataset.token), this);
    }

    pick(event) {
      this.point(event);
      const chip = event.target.closest(".fs-slot");
      if (chip && this.run.has("slot")) this.player.seeSlot(this.run.slots.get(Number(chip.dataset.token)));
    }

    seek(event) {
      const box = this.map.getBoundingClientRect();
      const down = (event.clientY - box.top) / (box.height - BAND);
      this.player.go(Math.min(this.run.last, Math.floor(down * this.run.foreseen)));
    }

    seekStrip(event) {
      const strip = event.target.closest(".fs-strip");
      if (!strip) return;
      const box = strip.getBoundingClientRect();
      this.player.go(Math.min(this.run.last, Math.floor(((event.clientX - box.left) / box.width) * this.run.steps.length)));
    }

    open(run, choices, number) {
      this.run = run;
      const { data } = run;
      this.picker.replaceChildren();
      for (const [value, name] of choices) {
        const option = make("option", "", this.picker, name);
        option.value = value;
        option.selected = value === number;
      }
      this.root.setAttribute("aria-label", data.model);
      this.about.textContent = (data.kind === "arm" ? "ARM" : "MDM") + ", " + data.visibility + (data.control ? ", " + (data.control_name || data.control) : "");
      this.verdict.textContent = data.correct === null || data.correct === undefined ? "" : data.correct ? "✓ right" : "✗ wrong";
      this.verdict.classList.toggle("fs-wrong", data.correct === false);
      this.layOut();
    }

    // Boxes in the order of the canvas: template words lead the region they introduce.
    layOut() {
      const { data, tokens, glued } = this.run;
      const marked = new Set(data.marked), gold = new Set(data.gold);
      this.body.replaceChildren();
      this.chips = [];
      this.shades = [];
      let box = null;
      for (const [label, start, stop] of data.regions) {
        if (!box) {
          box = make("div", "fs-region", this.body);
          this.text = make("div", "fs-text", box);
        }
        const frame = label === "scaffold" || label === "bos";
        for (let token = start; token < stop; token++) {
          if (!glued.has(token)) this.text.append(" ");
          const chip = make("span", "fs-token", this.text);
          make("span", "fs-word", chip, tokens[token]);
          chip.dataset.token = token;
          chip.tabIndex = -1;
          chip.classList.toggle("fs-template", frame);
          chip.classList.toggle("fs-marked", marked.has(token));
          chip.classList.toggle("fs-glued", glued.has(token));
          chip.classList.toggle("fs-slot", this.run.slots.has(token));
          if (this.run.slots.has(token)) {
            chip.dataset.state = "open";
            make("small", "fs-maybe", chip);
          }
          this.chips.push(chip);
        }
        if (frame) continue;
        box.dataset.region = label;
        const name = make("span", "fs-label", null, regionName(label));
        if (gold.has(label)) make("span", "fs-gold", name, "gold");
        box.prepend(name);
        box.classList.toggle("fs-is-gold", gold.has(label));
        box = null;
      }
      this.arcs = document.createElementNS(SVG, "svg");
      this.arcs.setAttribute("class", "fs-arcs");
      this.arcs.setAttribute("aria-hidden", "true");
      this.body.append(this.arcs);
    }

    // look: {view, slot, head}: which rows are looked from; scale: root, linear or rank; leave: without the strongest.
    show(step, layer, look, scale, leave) {
      const { run } = this;
      if (run.last < 0) {
        this.status.textContent = "waiting for the first step";
        return;
      }
      const at = Math.min(step, run.last);
      Object.assign(this, { at, layer, look, kind: scale, without: leave ? run.strongest(layer, look) : -1 });
      this.peak = run.peak(layer, look, this.without);
      const row = run.row(at, layer, look), anchors = run.anchors(at, layer), shade = this.shader(row);
      this.chips.forEach((chip, token) => {
        const value = row[token] || 0;
        const state = run.state(token, step);
        const dark = shade(value, token);
        const told = dark.toFixed(3);
        if (this.shades[token] !== told) chip.style.setProperty("--fs-shade", (this.shades[token] = told));
        chip.dataset.received = value.toPrecision(6);
        chip.classList.toggle("fs-strong", dark > 0.55);
        chip.classList.toggle("fs-anchor", anchors.has(token));
        chip.classList.toggle("fs-special", run.special.has(token));
        chip.tabIndex = anchors.has(token) || run.slots.has(token) ? 0 : -1;
        if (run.slots.has(token)) this.showSlot(chip, token, step, state);
      });
      const done = step > run.foreseen - 1 ? "finished" : `step ${at} of ${run.foreseen - 1}`;
      this.status.replaceChildren(make("b", "", null, done), ` · layer ${run.layerName(layer)} · answer: `, make("q", "", null, run.answer(at)));
      this.showScale();
      this.showRegions();
      this.draw();
      this.drawArcs();
    }

    showSlot(chip, token, step, state) {
      const { run } = this;
      if (chip.dataset.state !== state) chip.dataset.state = state;
      const text = run.text(token, step);
      if (chip.firstChild.textContent !== text) chip.firstChild.textContent = text;
      const [best] = (state === "open" && run.candidates(token, this.at)?.[1]) || [];
      const maybe = best ? `${best[0]} ${Math.round(100 * best[1])} %` : "";
      if (chip.lastChild.textContent !== maybe) chip.lastChild.textContent = maybe;
      chip.classList.toggle("fs-glued", run.glued.has(token) && state !== "open");
      chip.classList.toggle("fs-seen", this.look.view === "slot" && run.slots.get(token) === this.look.slot);
    }

    // From what a token receives to how dark it is, 0 to 1.
    shader(row) {
      const { peak, without } = this;
      if (this.kind === "rank") {
        const order = Float32Array.from(row).sort();
        const less = (value) => { let low = 0, high = order.length; while (low < high) { const middle = (low + high) >> 1; if (order[middle] < value) low = middle + 1; else high = middle; } return low; };
        return (value) => (value > 0 ? less(value) / Math.max(1, order.length - 1) : 0);
      }
      const root = this.kind === "root";
      return (value, token) => {
        const part = peak > 0 && token !== without ? Math.min(1, value / peak) : 0;
        return root ? Math.sqrt(part) : part;
      };
    }

    showScale() {
      const { run, without, layer, look } = this;
      const left = without < 0 ? "" : ` · left out: “${run.tokens[without]}” with up to ${percent(run.peak(layer, look))}`;
      const ends = this.kind === "rank" ? ["least", "most"] : ["0 %", percent(this.peak)];
      this.scale.replaceChildren(ends[0] + " ", make("span", "fs-ramp"), make("span", "fs-peak", null, ends[1]), `${{ root: "square-root scale", linear: "linear scale", rank: "by rank" }[this.kind]}${left}`);
    }

    // A line for each document and region: what these rows look at now, and at every step.
    showRegions() {
      const { run, at, layer, look } = this;
      const names = (look.view === "slot" ? run.data.commit?.names : run.data.by_region?.names) || [];
      const now = run.regions(at, layer, look);
      this.bars.hidden = !now.length;
      if (!now.length) return;
      if (this.bars.childElementCount !== names.length) this.bars.replaceChildren(...names.map(() => this.bar()));
      const byStep = look.view === "slot" ? [] : run.steps.map((_, step) => run.regions(step, layer, look));
      const most = Math.max(...now);
      const shown = [...names.keys()].filter((place) => names[place] !== "template"); // which hides the others
      const darkest = Math.max(...byStep.flatMap((row) => shown.map((place) => row[place])));
      const heat = getComputedStyle(this.bars).getPropertyValue("--fs-heat").trim();
      const gold = new Set(run.data.gold);
      names.forEach((name, place) => {
        const line = this.bars.children[place], [label, track, value, strip] = line.children;
        line.dataset.region = name;
        line.dataset.mass = now[place].toPrecision(6);
        label.textContent = regionName(name);
        label.classList.toggle("fs-gold", gold.has(name));
        track.firstChild.style.width = `${most > 0 ? (100 * now[place]) / most : 0}%`;
        value.textContent = percent(now[place]);
        strip.hidden = byStep.length < 2;
        if (strip.hidden) return;
        strip.width = byStep.length;
        const pen = strip.getContext("2d");
        pen.fillStyle = heat;
        byStep.forEach((row, step) => { pen.globalAlpha = darkest > 0 ? Math.min(1, row[place] / darkest) : 0; pen.fillRect(step, 0, 1, 1); });
        strip.title = `at every step, 0 to ${percent(darkest)}`;
        strip.setAttribute("aria-label", `${regionName(name)} ${strip.title}`);
      });
    }

    bar() {
      const line = make("div", "fs-bar-line");
      make("span", "fs-bar-name", line);
      make("i", "", make("span", "fs-track", line));
      make("span", "fs-bar-value", line);
      const strip = make("canvas", "fs-strip", line);
      strip.height = 1;
      strip.setAttribute("role", "img");
      return line;
    }

    // From a slot to the strongest keys of the row that filled it.
    drawArcs() {
      const { run, layer, look, arcs } = this;
      arcs.replaceChildren();
      if (look.view !== "slot" || look.slot === null || look.slot >= run.data.slots.length) return;
      const room = this.body.getBoundingClientRect();
      const middle = (token) => {
        const box = this.chips[token].getBoundingClientRect();
        return [box.left + box.width / 2 - room.left, box.top + box.height / 2 - room.top];
      };
      const [x, y] = middle(run.data.slots[look.slot]);
      const keys = run.commit(layer, look).keys, most = Math.max(...keys.map((key) => key[1]));
      for (const [token, mass] of keys) {
        const [left, top] = middle(token);
        const path = document.createElementNS(SVG, "path");
        const bend = Math.min(60, 20 + Math.abs(y - top) / 6);
        path.setAttribute("d", `M${x},${y} C${x + bend},${y - (y - top) / 3} ${left + bend},${top + (y - top) / 3} ${left},${top}`);
        path.setAttribute("stroke-width", (1 + 5 * Math.sqrt(mass / most)).toFixed(1));
        path.dataset.token = token;
        path.dataset.mass = mass.toPrecision(6);
        arcs.append(path);
      }
    }

    // All steps of the layer at a glance: steps down, tokens across, anchors as dots, a frame around the step shown, and
    // a line below the answer's slots.
    draw() {
      const { run, map, layer } = this;
      const ratio = window.devicePixelRatio || 1;
      map.style.height = `${Math.max(80, Math.min(176, 7 * run.foreseen)) + BAND}px`;
      const width = (map.width = Math.round(map.clientWidth * ratio)), height = (map.height = Math.round(map.clientHeight * ratio));
      if (!width) return;
      const style = getComputedStyle(map);
      const [heat, ink, accent] = ["heat", "ink", "accent"].map((name) => style.getPropertyValue(`--fs-${name}`).trim());
      const key = [layer, this.kind, this.without, Object.values(this.look), width, height, heat, run.last, run.data.model, run.data.control].join();
      if (this.painted?.key !== key || this.painted.run !== run) this.painted = { key, run, image: this.paintMap(width, height, { heat, ink, accent }) };
      const pen = map.getContext("2d");
      pen.drawImage(this.painted.image, 0, 0);
      const down = (height - BAND * ratio) / run.foreseen;
      pen.strokeStyle = ink;
      pen.lineWidth = ratio;
      pen.strokeRect(ratio / 2, Math.round(this.at * down) + ratio / 2, width - ratio, Math.max(ratio, Math.round(down) - ratio));
      map.setAttribute("aria-label", `Received attention of ${run.data.model}, layer ${run.layerName(layer)}: ${run.foreseen} steps by ${this.chips.length} tokens; ${this.summary()}`);
    }

    paintMap(width, height, { heat, ink, accent }) {
      const { run, layer } = this;
      const look = this.look.view === "slot" ? { view: "all" } : this.look; // a slot has one row, and the map shows all steps
      const ratio = window.devicePixelRatio || 1;
      const image = document.createElement("canvas");
      image.width = width;
      image.height = height;
      const pen = image.getContext("2d");
      const tokens = this.chips.length;
      const across = width / tokens, down = (height - BAND * ratio) / run.foreseen;
      const own = { ...this, peak: run.peak(layer, look, this.without) };
      pen.fillStyle = accent;
      for (const token of run.slots.keys()) pen.fillRect(token * across, height - 3 * ratio, Math.max(1, across), 3 * ratio);
      for (let at = 0; at <= run.last; at++) {
        const row = run.row(at, layer, look), shade = this.shader.call(own, row);
        const top = Math.round(at * down), tall = Math.round((at + 1) * down) - top;
        pen.fillStyle = heat;
        for (let token = 0; token < tokens; token++) {
          const left = Math.round(token * across);
          pen.globalAlpha = shade(row[token] || 0, token);
          pen.fillRect(left, top, Math.max(1, Math.round((token + 1) * across) - left), tall);
        }
        pen.globalAlpha = 1;
        pen.fillStyle = ink;
        const size = Math.max(2, Math.min(across, tall) * 0.4);
        for (const token of run.anchors(at, layer)) pen.fillRect((token + 0.5) * across - size / 2, top + (tall - size) / 2, size, size);
      }
      return image;
    }

    summary() {
      const { run, at, layer, look } = this;
      const row = run.row(at, layer, look);
      const top = row.indexOf(Math.max(...row));
      const word = run.isOpen(top, at) ? "a masked slot" : `“${run.text(top, at)}”`;
      const anchors = run.anchors(at, layer).size;
      return `most attended ${word} (${run.label(top)}) with ${percent(row[top])}, ${anchors} anchor${anchors === 1 ? "" : "s"}`;
    }

    read(token) {
      const { run } = this;
      if (this.pointed) this.pointed.classList.remove("fs-pointed");
      this.pointed = null;
      if (run.last < 0) return;
      if (token === null || token >= this.chips.length) {
        this.readout.textContent = this.summary();
        return;
      }
      this.pointed = this.chips[token];
      this.pointed.classList.add("fs-pointed");
      const value = run.received(this.at, this.layer, token, this.look);
      const state = run.state(token, this.at);
      const word = state === "open" ? (run.data.kind === "arm" ? "not yet written" : "masked slot") : run.text(token, this.at);
      const slot = run.slots.get(token);
      let text = ` · token ${token} · ${run.label(token)} · received ${percent(value)}`;
      if (run.isAnchor(this.at, this.layer, token)) text += " · anchor";
      if (state === "revised" || state === "renoised") text += ` · ${state} at this step`;
      else if (run.commitStep[slot] >= 0 && run.commitStep[slot] <= this.at && state !== "open") {
        const sure = run.confidence[slot]; // null where it was not kept
        text += ` · committed at step ${run.commitStep[slot]}${sure === null ? "" : ` with ${percent(sure)}`}`;
      }
      const [, chances, margin, entropy, moved] = run.candidates(token, this.at) || [];
      if (chances) {
        text += ` · would be ${chances.map(([said, chance]) => `“${said}” ${percent(chance)}`).join(", ")}; margin ${percent(margin)}, entropy ${entropy.toFixed(2)} nats`;
        if (moved !== null) text += `, moved ${moved.toFixed(3)} nats since the step before`;
      }
      this.readout.replaceChildren(make("b", "", null, word), text);
    }
  }

  Object.assign(floatscope, { make, percent, Run, Panel });
})();
