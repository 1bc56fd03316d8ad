// The canvas of one run: its tokens as text, shaded by what they receive. Needs run.js before it.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Panel) return;

  const { strongest } = floatscope;
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
      Object.assign(this, { at, layer, look, kind: scale, leave, peak: run.peak(layer, look, leave) });
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
      const { peak } = this, without = this.leave ? strongest(row) : -1;
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
      const { run, at, layer, look } = this;
      const row = run.row(at, layer, look), top = strongest(row);
      const left = this.leave && this.kind !== "rank" ? ` · left out: ${this.named(top)} with ${percent(row[top])}` : "";
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
      const shown = [...names.keys()].filter((place) => names[place] !== "template"); // which hides the others
      const most = Math.max(...shown.map((place) => now[place]));
      const darkest = Math.max(...byStep.flatMap((row) => shown.map((place) => row[place])));
      const heat = getComputedStyle(this.bars).getPropertyValue("--fs-heat").trim();
      const gold = new Set(run.data.gold);
      names.forEach((name, place) => {
        const line = this.bars.children[place], [label, track, value, strip] = line.children;
        line.dataset.region = name;
        line.dataset.mass = now[place].toPrecision(6);
        label.textContent = regionName(name);
        label.classList.toggle("fs-gold", gold.has(name));
        track.firstChild.style.width = `${most > 0 ? Math.min(100, (100 * now[place]) / most) : 0}%`;
        track.classList.toggle("fs-over", now[place] > most);
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
      const key = [layer, this.kind, this.leave, Object.values(this.look), width, height, heat, run.last, run.data.model, run.data.control].join();
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
      const own = { ...this, peak: run.peak(layer, look, this.leave) };
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

    named(token) { return this.run.isOpen(token, this.at) ? "a masked slot" : `“${this.run.text(token, this.at)}”`; }

    summary() {
      const { run, at, layer, look } = this;
      const row = run.row(at, layer, look);
      const top = strongest(row), anchors = run.anchors(at, layer).size;
      return `most attended ${this.named(top)} (${run.label(top)}) with ${percent(row[top])}, ${anchors} anchor${anchors === 1 ? "" : "s"}`;
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

  Object.assign(floatscope, { make, percent, Panel });
})();
