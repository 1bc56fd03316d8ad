// The numbers of one run by step, layer and token, and which slots are tokens when; canvas.js draws them.
// The data are described in docs/howto/report.md and made by report/player.py; only the shade is computed in the browser.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Run) return;

  const LEVELS = 65535;

  function bytesOf(data) {
    const text = atob(data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  // The token that receives most.
  const strongest = (row) => row.indexOf(Math.max(...row));

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

    // The most that any token receives in this layer at any step: the darkest shade. The strongest of each step can be left out.
    peak(layer, look, leave = false) {
      return this.remember(["peak", layer, Object.values(look || {}), leave].join(), () => {
        let peak = 0;
        for (let step = 0; step <= this.last; step++) {
          const row = this.row(step, layer, look), without = leave ? strongest(row) : -1;
          row.forEach((value, token) => { if (value > peak && token !== without) peak = value; });
        }
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
      return text.replace(/[\s␣]+/g, " ").trim();
    }
  }

  Object.assign(floatscope, { Run, strongest });
})();
