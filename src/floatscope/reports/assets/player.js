// The player: the canvases of an MDM and an ARM side by side, with sliders, keys and a voice. Needs canvas.js before it.
// A live page makes runs without steps and calls push as steps arrive.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Player) return;

  const { make, Run, Panel } = floatscope;
  const STEP_TIME = 900;
  const SINK = 4; // so many times as much as any other token of its step receives, a token hides the others: it is left out at first
  const VIEWS = { all: "all rows", answer: "the answer", masked: "masked slots", slot: "this slot" };
  const SCALES = { root: "square root", linear: "linear", rank: "rank" };
  const KEYS = { "play or pause": ["space"], step: ["←", "→"], layer: ["↑", "↓"], "first and last step": ["home", "end"] };

  // How the models did on a sample, in a word.
  function verdicts(sample) {
    const known = sample.runs.map((run) => run.data).filter((data) => !data.control && (data.correct === true || data.correct === false));
    const wrong = known.filter((data) => !data.correct).map((data) => data.model);
    if (!known.length) return "";
    return wrong.length ? ` ✗ ${wrong.length === known.length ? "all" : wrong.join(", ")}` : " ✓";
  }

  class Player {
    constructor(root, data) {
      this.root = root;
      this.samples = data.samples.map((sample) => ({ ...sample, runs: sample.runs.map((run) => new Run(run)) }));
      this.sample = 0;
      this.step = 0;
      this.layer = 0;
      this.control = false;
      this.look = { view: "all", slot: null, head: 0 };
      this.pointed = null;
      root.classList.add("floatscope", "fs-player");
      root.tabIndex = 0;
      root.setAttribute("role", "region");
      root.setAttribute("aria-label", "Player: received attention step by step. Space plays, left and right change the step, up and down the layer.");
      this.build();
      this.openSample(0);
      this.goLayer(this.tellingLayer());
      this.leaveBox.checked = this.hasSink();
      this.show();
      root.addEventListener("keydown", (event) => this.key(event));
      this.watch = new ResizeObserver(() => this.show());
      this.watch.observe(this.columns);
      window.addEventListener("floatscope-theme", () => this.show());
    }

    build() {
      this.title = make("div", "fs-title", this.root);
      this.bar = make("div", "fs-bar", this.root);
      this.button = make("button", "fs-play", this.bar);
      this.button.type = "button";
      this.button.addEventListener("click", () => this.toggle());
      this.stepSlider = this.slider("step", "Denoising step", (value) => this.go(value));
      this.layerSlider = this.slider("layer", "Layer", (value) => this.goLayer(value));
      this.now = make("div", "fs-now", this.bar);
      this.options = make("div", "fs-options", this.root);
      this.viewPicker = this.chooser("seen from", VIEWS, (view) => this.see({ view }));
      this.headPicker = this.chooser("heads", { 0: "mean" }, (head) => this.see({ head: Number(head) }));
      this.scalePicker = this.chooser("shade", SCALES, () => this.show());
      const leave = make("label", "fs-chooser", this.options);
      this.leaveBox = make("input", "fs-leave", leave);
      this.leaveBox.type = "checkbox";
      this.leaveBox.addEventListener("change", () => this.show());
      leave.append(" leave the strongest of each step out");
      this.switch = make("label", "fs-switch", this.options);
      this.switchBox = make("input", "", this.switch);
      this.switchBox.type = "checkbox";
      this.switchName = make("span", "", this.switch);
      this.switchBox.addEventListener("change", () => this.setControl(this.switchBox.checked));
      this.columns = make("div", "fs-columns", this.root);
      this.legend = make("div", "fs-legend", this.root);
      make("span", "", this.legend, "shade: attention received; click a slot of the answer to see what it read");
      const anchor = make("span", "fs-key", this.legend);
      make("span", "fs-token fs-anchor", anchor, "outlined");
      anchor.append(" anchor: mean + 3 standard deviations");
      const slot = make("span", "fs-key", this.legend);
      make("span", "fs-token fs-slot", slot, "new").dataset.state = "commits";
      slot.append(" commits at this step");
      this.changes = make("span", "fs-key", this.legend);
      make("span", "fs-token fs-slot", this.changes, "other").dataset.state = "revised";
      this.changes.append(" becomes another token, ");
      make("span", "fs-token fs-slot", this.changes, "gone").dataset.state = "renoised";
      this.changes.append(" is withdrawn");
      const keys = make("p", "fs-keys", this.root);
      for (const [does, pressed] of Object.entries(KEYS)) {
        const group = make("span", "", keys);
        for (const key of pressed) make("kbd", "", group, key);
        group.append(does);
      }
      this.live = make("p", "fs-live", this.root);
      this.live.setAttribute("aria-live", "polite");
      this.panels = [];
      this.paintButton();
    }

    chooser(name, options, change) {
      const label = make("label", "fs-chooser", this.options, `${name} `);
      const select = make("select", "", label);
      select.setAttribute("aria-label", name);
      for (const [value, text] of Object.entries(options)) make("option", "", select, text).value = value;
      select.addEventListener("change", () => change(select.value));
      return select;
    }

    // From which rows the page looks: {view, slot, head}, those that change.
    see(change) {
      Object.assign(this.look, change);
      if (this.look.view === "slot" && this.look.slot === null) this.look.slot = 0;
      this.show();
    }

    seeSlot(slot) {
      const again = this.look.view === "slot" && this.look.slot === slot;
      this.see({ view: again ? "all" : "slot", slot });
    }

    // Views and heads that some run has; a run without them shows what all rows look at.
    offer(runs) {
      for (const option of this.viewPicker.options) option.hidden = option.disabled = !runs.some((run) => run.has(option.value));
      if (!runs.some((run) => run.has(this.look.view))) this.look.view = "all";
      this.viewPicker.value = this.look.view;
      this.viewPicker.parentElement.hidden = !runs.some((run) => ["answer", "masked", "slot"].some((view) => run.has(view)));
      const heads = Math.max(0, ...runs.map((run) => run.data.commit?.heads || 0));
      this.headPicker.parentElement.hidden = this.look.view !== "slot" || heads < 2;
      if (this.headPicker.length !== Math.max(1, heads)) {
        this.headPicker.replaceChildren();
        for (let head = 0; head < Math.max(1, heads); head++) make("option", "", this.headPicker, head ? `head ${head - 1}` : "mean").value = head;
      }
      this.headPicker.value = this.look.head;
    }

    hasSink() {
      return this.shown.some((_, place) => {
        const run = this.run(place), layer = this.layerOf(run);
        return run.last >= 0 && run.peak(layer) > SINK * run.peak(layer, undefined, true);
      });
    }

    // The place of a sample of a task under a condition; -1 where it was not traced.
    find({ task, condition, id }) {
      return this.samples.findIndex((one) => one.id === id && one.task === task && one.condition === condition);
    }

    slider(name, label, change) {
      const group = make("label", `fs-slider fs-slider-${name}`, this.bar);
      make("span", "fs-slider-name", group, name);
      const input = make("input", "", group);
      input.type = "range";
      input.min = 0;
      input.setAttribute("aria-label", label);
      input.addEventListener("input", () => change(Number(input.value)));
      const output = make("output", "", group);
      return { input, output };
    }

    // The models of the sample that can be chosen: trained, or their controls where the switch is on.
    choices() {
      const { runs } = this.samples[this.sample];
      const all = runs.map((run, number) => [number, run.data]);
      const wanted = all.filter(([, data]) => this.control === (data.control === "untrained"));
      return wanted.length ? wanted : all;
    }

    openSample(number) {
      this.sample = number;
      const choices = this.choices();
      const first = (kind) => choices.find(([, data]) => data.kind === kind);
      const kept = (this.models || []).map((model) => choices.find(([, data]) => data.model === model)).filter(Boolean);
      const found = kept.length ? kept : [first("mdm"), first("arm")].filter(Boolean);
      const wanted = found.length ? found : choices.slice(0, 2);
      this.shown = wanted.map(([run]) => run);
      this.models = wanted.map(([, data]) => data.model);
      const control = this.samples[number].runs.find((run) => run.data.control === "untrained");
      this.switch.hidden = !control;
      this.switchName.textContent = ` ${control?.data.control_name || "untrained"} control`;
      this.look.slot = null;
      if (this.look.view === "slot") this.look.view = "all";
      while (this.panels.length > this.shown.length) this.panels.pop().root.remove();
      while (this.panels.length < this.shown.length) this.panels.push(new Panel(this, this.columns, this.panels.length));
      this.columns.dataset.count = this.shown.length;
      this.openRuns();
    }

    openRuns() {
      const names = this.choices().map(([number, data]) => [number, data.model]);
      this.panels.forEach((panel, place) => panel.open(this.run(place), names, this.shown[place]));
      this.paintTitle();
      this.measure();
      this.show();
    }

    run(place) { return this.samples[this.sample].runs[this.shown[place]]; }

    paintTitle() {
      const sample = this.samples[this.sample];
      this.title.replaceChildren();
      if (this.samples.length > 1) {
        const picker = make("select", "fs-sample", this.title);
        picker.setAttribute("aria-label", "Sample");
        const several = new Set(this.samples.map((other) => other.condition)).size > 1;
        this.samples.forEach((other, number) => {
          const condition = several ? ` (${other.condition})` : "";
          const option = make("option", "", picker, `${number + 1} of ${this.samples.length}: ${other.question}${condition}${verdicts(other)}`);
          option.value = number;
          option.selected = number === this.sample;
        });
        picker.addEventListener("change", () => { this.step = 0; this.openSample(Number(picker.value)); });
      } else make("strong", "", this.title, sample.question);
      if (sample.answers.length) make("span", "fs-answers", this.title, "right answer: " + sample.answers.join(" or "));
    }

    measure() {
      const runs = this.shown.map((_, place) => this.run(place));
      this.steps = Math.max(1, ...runs.map((run) => run.last + 1));
      this.layers = Math.max(...runs.map((run) => run.data.layers));
      this.step = Math.min(this.step, this.steps - 1);
      this.layer = Math.min(this.layer, this.layers - 1);
      this.stepSlider.input.max = this.steps - 1;
      this.layerSlider.input.max = this.layers - 1;
    }

    // Where to begin: the layer that exchanges most anchors between the first step and the last; of equals, the one in
    // which some token receives most.
    tellingLayer() {
      const runs = this.shown.map((_, place) => this.run(place));
      let best = 0, most = [-1, -1];
      for (let layer = 0; layer < this.layers; layer++) {
        this.layer = layer;
        const moved = runs[0].exchanged(this.layerOf(runs[0]));
        const peak = Math.max(...runs.map((run) => run.peak(this.layerOf(run))));
        if (moved > most[0] || (moved === most[0] && peak > most[1])) [best, most] = [layer, [moved, peak]];
      }
      return best;
    }

    // Models of unequal depth are compared at the same relative depth.
    layerOf(run) {
      return this.layers < 2 ? 0 : Math.round((this.layer / (this.layers - 1)) * (run.data.layers - 1));
    }

    show() {
      const runs = this.shown.map((_, place) => this.run(place));
      this.offer(runs);
      this.stepSlider.input.value = this.step;
      this.stepSlider.output.textContent = `${this.step} / ${this.steps - 1}`;
      this.layerSlider.input.value = this.layer;
      const deepest = runs.find((run) => run.data.layers === this.layers);
      this.layerSlider.output.textContent = `${deepest.layerName(this.layer)} / ${deepest.layerName(this.layers - 1)}`;
      this.changes.hidden = !runs.some((run) => run.history);
      this.panels.forEach((panel, place) => {
        const own = { ...this.look, view: runs[place].has(this.look.view) ? this.look.view : "all" };
        panel.show(this.step, this.layerOf(runs[place]), own, this.scalePicker.value, this.leaveBox.checked);
        panel.read(this.pointed);
      });
      this.paintNow();
      if (!this.timer) this.say();
    }

    // The answers as they stand, beside the sliders, which stay on the screen.
    paintNow() {
      this.now.replaceChildren(...this.panels.filter((panel) => panel.run.last >= 0).map((panel) => {
        const line = make("span", "", null);
        make("b", "", line, panel.run.data.model);
        make("q", "", line, panel.run.answer(Math.min(this.step, panel.run.last)) || "…");
        return line;
      }));
    }

    // What a screen reader hears after a change; silent while playing.
    say() {
      const known = this.panels.filter((panel) => panel.run.last >= 0);
      this.live.textContent = `Step ${this.step} of ${this.steps - 1}, layer ${this.layer}. ` +
        known.map((panel) => `${panel.run.data.model}: ${panel.summary()}; answer ${panel.run.answer(panel.at)}`).join(". ");
    }

    point(token, panel) {
      // The other panel tells of the same token, where it has the same prompt.
      const inPrompt = panel && !panel.run.slots.has(token);
      const sameSlots = (other) => other.run.data.slots[0] === panel.run.data.slots[0];
      const same = (other) => !panel || other === panel || (inPrompt && sameSlots(other) && other.run.tokens[token] === panel.run.tokens[token]);
      this.panels.forEach((other) => other.read(same(other) ? token : null));
      this.pointed = this.panels.every(same) ? token : null;
    }

    go(step) {
      this.step = Math.max(0, Math.min(this.steps - 1, step));
      this.show();
    }

    goLayer(layer) {
      this.layer = Math.max(0, Math.min(this.layers - 1, layer));
      this.show();
    }

    choose(place, number) {
      this.shown[place] = number;
      this.models[place] = this.run(place).data.model;
      this.openRuns();
    }

    setControl(on) {
      this.control = on;
      this.openSample(this.sample);
    }

    // A step that has just been computed: it is shown at once unless the reader has gone back.
    push(number, step) {
      const follows = this.step >= this.steps - 1;
      this.samples[this.sample].runs[number].push(step);
      this.measure();
      if (follows) this.step = this.steps - 1;
      this.show();
    }

    // A live run that has ended: its data as a trace gives them, with what only the end tells.
    finish(number, data) {
      const { runs } = this.samples[this.sample];
      runs[number] = new Run(data);
      this.openRuns();
    }

    toggle() {
      if (this.timer) this.pause();
      else this.play();
    }

    play() {
      if (this.step >= this.steps - 1) this.go(0);
      this.timer = setInterval(() => {
        this.go(this.step + 1);
        if (this.step >= this.steps - 1) this.pause();
      }, STEP_TIME);
      this.paintButton();
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      this.paintButton();
      this.say();
    }

    paintButton() {
      this.button.textContent = this.timer ? "❚❚" : "▶";
      this.button.setAttribute("aria-label", this.timer ? "Pause" : "Play");
    }

    key(event) {
      const tag = event.target.tagName;
      if (event.altKey || event.ctrlKey || event.metaKey || tag === "SELECT" || (tag === "INPUT" && event.key !== " ")) return;
      if (event.key === " " && (tag === "BUTTON" || event.target.type === "checkbox")) return;
      const actions = {
        " ": () => this.toggle(),
        ArrowRight: () => this.go(this.step + 1),
        ArrowLeft: () => this.go(this.step - 1),
        ArrowUp: () => this.goLayer(this.layer + 1),
        ArrowDown: () => this.goLayer(this.layer - 1),
        Home: () => this.go(0),
        End: () => this.go(this.steps - 1),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    }
  }

  floatscope.Player = Player;
})();
