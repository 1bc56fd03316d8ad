// The list of samples: every answer of a run, with filters; only the lines in view are in the page. Needs canvas.js before it.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.Samples) return;

  const { make } = floatscope;
  const SPARE = 6; // lines kept above and below those in view
  const PER_MODEL = 26; // pixels of a model's answer where each has a line of its own
  const PLACES = [["", "anywhere"], ["gold", "in a gold document"], ["another document", "in another document"], ["nowhere", "nowhere"]];

  class Samples {
    constructor(root, data, player) {
      Object.assign(this, { root, data, player });
      this.cases = data.rows.map(([sample, condition, gold, answers]) => {
        const [task, id, question, right] = data.samples[sample];
        const names = { task: data.tasks[task], condition: data.conditions[condition], id };
        return { ...names, question, right, gold, answers, played: player ? player.find(names) : -1 };
      });
      this.lines = new Map();
      this.build();
      this.filter();
      new ResizeObserver(() => this.measure()).observe(this.view);
      this.view.addEventListener("scroll", () => this.paint(), { passive: true });
    }

    build() {
      const { models, tasks, conditions } = this.data;
      this.root.classList.add("fs-samples");
      this.bar = make("div", "fs-filters", this.root);
      this.choices = {};
      this.choice("answers", [["", "all"], ["wrong", "some wrong"], ["disagree", "models disagree"]]);
      if (models.length > 1) for (const model of models) this.choice(model, [["", "right or wrong"], ["1", "right"], ["0", "wrong"]]);
      this.choice("prediction stands", PLACES);
      for (const [name, all] of [["task", tasks], ["condition", conditions]]) {
        if (all.length > 1) this.choice(name, [["", "all"], ...all.map((one) => [one, one])]);
      }
      if (this.cases.some((one) => one.played >= 0)) this.choice("traced", [["", "or not"], ["1", "only"]]);
      this.count = make("p", "fs-count", this.root);
      this.count.setAttribute("aria-live", "polite");
      this.head = make("div", "fs-line fs-line-head", this.root);
      for (const name of ["question", "right answer", ...models]) make("span", "", this.head, name);
      this.root.style.setProperty("--models", models.length);
      this.view = make("div", "fs-lines", this.root);
      this.view.tabIndex = 0;
      this.view.setAttribute("role", "list");
      this.view.setAttribute("aria-label", "Answers");
      this.room = make("div", "fs-room", this.view);
      this.note = make("p", "fs-note", this.root);
      this.note.setAttribute("aria-live", "polite");
    }

    choice(name, options) {
      const label = make("label", "", this.bar);
      make("span", "", label, name);
      const select = make("select", "", label);
      for (const [value, text] of options) make("option", "", select, text).value = value;
      select.dataset.filter = name;
      select.addEventListener("change", () => this.filter());
      this.choices[name] = select;
    }

    filter() {
      const value = (name) => this.choices[name]?.value ?? "";
      const wanted = this.data.models.map(value);
      const [answers, stands] = [value("answers"), value("prediction stands")];
      this.found = this.cases.filter((one) => {
        const known = one.answers.filter(Boolean);
        const rights = new Set(known.map((answer) => answer[1]));
        if (answers === "wrong" && !rights.has(0)) return false;
        if (answers === "disagree" && rights.size < 2) return false;
        if (wanted.some((right, place) => right !== "" && String(one.answers[place]?.[1]) !== right)) return false;
        if (stands && !known.some((answer) => answer[3] === stands && !(answers === "wrong" && answer[1]))) return false;
        if (value("traced") && one.played < 0) return false;
        return ["task", "condition"].every((name) => !value(name) || one[name] === value(name));
      });
      this.count.textContent = `${this.found.length} of ${this.cases.length} samples`;
      this.note.textContent = "";
      this.view.scrollTop = 0;
      this.measure();
    }

    // Lines have one height, so that where each stands is known without drawing it.
    measure() {
      const narrow = getComputedStyle(this.head).display === "none";
      this.tall = parseFloat(getComputedStyle(this.view).getPropertyValue("--line")) + (narrow ? PER_MODEL * this.data.models.length : 0);
      this.room.style.height = `${this.tall * this.found.length}px`;
      for (const line of this.lines.values()) line.remove();
      this.lines.clear();
      this.paint();
    }

    paint() {
      const first = Math.max(0, Math.floor(this.view.scrollTop / this.tall) - SPARE);
      const last = Math.min(this.found.length, Math.ceil((this.view.scrollTop + this.view.clientHeight) / this.tall) + SPARE);
      for (const [place, line] of this.lines) if (place < first || place >= last) { line.remove(); this.lines.delete(place); }
      for (let place = first; place < last; place++) if (!this.lines.has(place)) this.lines.set(place, this.line(place));
    }

    line(place) {
      const one = this.found[place];
      const line = make("div", "fs-line", this.room);
      line.setAttribute("role", "listitem");
      line.dataset.place = place;
      line.style.top = `${place * this.tall}px`;
      line.style.height = `${this.tall}px`;
      const button = make("button", "fs-question", line);
      button.type = "button";
      if (one.played >= 0) make("span", "fs-traced", button, "▶ ");
      button.append(one.question);
      button.addEventListener("click", () => this.open(one));
      make("small", "", button, `${one.task} · ${one.condition}`);
      make("span", "fs-right", line, one.right.join(" or "));
      one.answers.forEach((answer, model) => {
        const cell = make("span", "fs-said", line);
        cell.dataset.model = this.data.models[model];
        if (!answer) return;
        const [said, right, stands, where] = answer;
        make("b", right ? "fs-verdict" : "fs-verdict fs-wrong", cell, right ? "✓" : "✗");
        make("q", "", cell, said);
        const told = stands?.length ? `document ${stands.join(", ")}${where === "gold" ? ", gold" : ""}` : "in no document";
        if (where) make("small", where === "another document" ? "fs-where fs-other" : "fs-where", cell, told);
      });
      return line;
    }

    open(one) {
      if (one.played < 0) {
        this.note.textContent = `“${one.question}” under ${one.condition} was not traced: run again with --trace-wrong N, which keeps failing samples beside right ones.`;
        return;
      }
      this.note.textContent = "";
      this.player.step = 0;
      this.player.openSample(one.played);
      this.player.goLayer(this.player.tellingLayer());
      this.player.root.scrollIntoView({ block: "start" });
      this.player.root.focus({ preventScroll: true });
    }
  }

  floatscope.Samples = Samples;
})();
