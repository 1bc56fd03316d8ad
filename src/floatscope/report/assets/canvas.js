// The canvas of one run: its numbers by step, layer and token, and its tokens as text, shaded by what they receive.
// The data are described in docs/howto/report.md and made by report/player.py; only the shade is computed here.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Panel) return;

  const LEVELS = 65535;
  const NAMES = { query: "question", before: "text before", after: "text after" };
  const BAND = 5; // pixels below the map, where the answer's slots are marked

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

  function unpack(step) {
    const text = atob(step.received.data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const view = new DataView(bytes.buffer);
    const values = new Float32Array(text.length / 2);
    for (let i = 0; i < values.length; i++) values[i] = (step.received.scale * view.getUint16(2 * i, true)) / LEVELS;
    return { values, anchors: step.anchors.map((places) => new Set(places)) };
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
      this.peaks = [];
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
      this.peaks = [];
    }

    get last() { return this.steps.length - 1; }

    // Steps there will be: those that are known, and for a live run those still to come.
    get foreseen() { return Math.max(this.steps.length, this.data.foreseen || 0); }

    frame(step) {
      return (this.frames[step] ||= unpack(this.steps[step]));
    }

    row(step, layer) {
      const values = this.frame(step).values;
      const width = values.length / this.data.layers;
      return values.subarray(layer * width, (layer + 1) * width);
    }

    received(step, layer, token) {
      return this.row(step, layer)[token] || 0;
    }

    isAnchor(step, layer, token) {
      return this.frame(step).anchors[layer].has(token);
    }

    // The most that any token receives in this layer at any step: the darkest shade.
    peak(layer) {
      if (this.peaks[layer] === undefined) {
        let peak = 0;
        for (let step = 0; step <= this.last; step++) for (const value of this.row(step, layer)) if (value > peak) peak = value;
        this.peaks[layer] = peak;
      }
      return this.peaks[layer];
    }

    // How many anchors the first step and the last do not have in common.
    exchanged(layer) {
      if (this.last < 1) return 0;
      const [first, last] = [0, this.last].map((step) => this.frame(step).anchors[layer]);
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
      return text.trim();
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
      this.status = make("p", "fs-status", this.root);
      this.body = make("div", "fs-canvas", this.root);
      this.readout = make("p", "fs-readout", this.root);
      this.body.addEventListener("pointerover", (event) => this.point(event));
      this.body.addEventListener("focusin", (event) => this.point(event));
      this.body.addEventListener("click", (event) => this.point(event));
      this.body.addEventListener("pointerleave", () => player.point(null));
    }

    point(event) {
      const chip = event.target.closest(".fs-token");
      if (chip) this.player.point(Number(chip.dataset.token), this);
    }

    seek(event) {
      const box = this.map.getBoundingClientRect();
      const down = (event.clientY - box.top) / (box.height - BAND);
      this.player.go(Math.min(this.run.last, Math.floor(down * this.run.foreseen)));
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
      this.about.textContent = (data.kind === "arm" ? "ARM" : "MDM") + ", " + data.visibility + (data.control ? ", " + data.control : "");
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
          chip.classList.toggle("fs-slot", this.run.slots.has(token));
          if (this.run.slots.has(token)) chip.dataset.state = "open";
          this.chips.push(chip);
        }
        if (frame) continue;
        box.dataset.region = label;
        const name = make("span", "fs-label", null, NAMES[label] || label.replace("doc", "document"));
        if (gold.has(label)) make("span", "fs-gold", name, "gold");
        box.prepend(name);
        box.classList.toggle("fs-is-gold", gold.has(label));
        box = null;
      }
    }

    show(step, layer, peak) {
      const { run } = this;
      if (run.last < 0) {
        this.status.textContent = "waiting for the first step";
        return;
      }
      const at = Math.min(step, run.last);
      const row = run.row(at, layer), anchors = run.frame(at).anchors[layer];
      this.at = at;
      this.layer = layer;
      this.chips.forEach((chip, token) => {
        const value = row[token] || 0;
        const state = run.state(token, step);
        const shade = peak > 0 ? Math.min(1, value / peak).toFixed(3) : "0";
        if (this.shades[token] !== shade) chip.style.setProperty("--fs-shade", (this.shades[token] = shade));
        chip.dataset.received = value.toPrecision(6);
        chip.classList.toggle("fs-strong", peak > 0 && value > 0.55 * peak);
        chip.classList.toggle("fs-anchor", anchors.has(token));
        chip.classList.toggle("fs-special", run.special.has(token));
        chip.tabIndex = anchors.has(token) ? 0 : -1;
        if (run.slots.has(token)) {
          if (chip.dataset.state !== state) chip.dataset.state = state;
          const text = run.text(token, step);
          if (chip.firstChild.textContent !== text) chip.firstChild.textContent = text;
        }
      });
      const done = step > run.foreseen - 1 ? "finished" : `step ${at} of ${run.foreseen - 1}`;
      this.status.replaceChildren(make("b", "", null, done), ` · layer ${layer} · answer: `, make("q", "", null, run.answer(at)));
      this.draw(layer, peak);
    }

    // All steps of the layer at a glance: steps down, tokens across, anchors as dots, a frame around the step shown, and
    // a line below the answer's slots.
    draw(layer, peak) {
      const { run, map } = this;
      const ratio = window.devicePixelRatio || 1;
      map.style.height = `${Math.max(80, Math.min(176, 7 * run.foreseen)) + BAND}px`;
      const width = (map.width = Math.round(map.clientWidth * ratio)), height = (map.height = Math.round(map.clientHeight * ratio));
      if (!width) return;
      const style = getComputedStyle(map);
      const [heat, ink, accent] = ["heat", "ink", "accent"].map((name) => style.getPropertyValue(`--fs-${name}`).trim());
      const key = [layer, peak, width, height, heat, run.last, run.data.model, run.data.control].join();
      if (this.painted?.key !== key || this.painted.run !== run) this.painted = { key, run, image: this.paintMap(layer, peak, width, height, { heat, ink, accent }) };
      const pen = map.getContext("2d");
      pen.drawImage(this.painted.image, 0, 0);
      const down = (height - BAND * ratio) / run.foreseen;
      pen.strokeStyle = ink;
      pen.lineWidth = ratio;
      pen.strokeRect(ratio / 2, Math.round(this.at * down) + ratio / 2, width - ratio, Math.max(ratio, Math.round(down) - ratio));
      map.setAttribute("aria-label", `Received attention of ${run.data.model}, layer ${layer}: ${run.foreseen} steps by ${this.chips.length} tokens; ${this.summary()}`);
    }

    paintMap(layer, peak, width, height, { heat, ink, accent }) {
      const { run } = this;
      const ratio = window.devicePixelRatio || 1;
      const image = document.createElement("canvas");
      image.width = width;
      image.height = height;
      const pen = image.getContext("2d");
      const tokens = this.chips.length;
      const across = width / tokens, down = (height - BAND * ratio) / run.foreseen;
      pen.fillStyle = accent;
      for (const token of run.slots.keys()) pen.fillRect(token * across, height - 3 * ratio, Math.max(1, across), 3 * ratio);
      for (let at = 0; at <= run.last; at++) {
        const row = run.row(at, layer);
        const top = Math.round(at * down), tall = Math.round((at + 1) * down) - top;
        pen.fillStyle = heat;
        for (let token = 0; token < tokens; token++) {
          const left = Math.round(token * across);
          pen.globalAlpha = Math.min(1, (row[token] || 0) / (peak || 1));
          pen.fillRect(left, top, Math.max(1, Math.round((token + 1) * across) - left), tall);
        }
        pen.globalAlpha = 1;
        pen.fillStyle = ink;
        const size = Math.max(2, Math.min(across, tall) * 0.4);
        for (const token of run.frame(at).anchors[layer]) pen.fillRect((token + 0.5) * across - size / 2, top + (tall - size) / 2, size, size);
      }
      return image;
    }

    summary() {
      const { run, at, layer } = this;
      const row = run.row(at, layer);
      const top = row.indexOf(Math.max(...row));
      const word = run.isOpen(top, at) ? "a masked slot" : `“${run.text(top, at)}”`;
      const anchors = run.frame(at).anchors[layer].size;
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
      const value = run.received(this.at, this.layer, token);
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
      this.readout.replaceChildren(make("b", "", null, word), text);
    }
  }

  Object.assign(floatscope, { make, percent, Run, Panel });
})();
