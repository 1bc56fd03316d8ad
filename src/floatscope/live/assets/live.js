// The live page: sends what was typed, reads the stream of JSON lines, and hands every step to the report's player.
// Texts reach the page through textContent and value only.
(() => {
  const { floatscope } = window;
  const { make } = floatscope;
  const PACE = 220; // a step stays at least so many milliseconds, or a small model would be over before it is seen
  const find = (name) => document.getElementById(name);
  const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));
  const hiddenTokens = new Map(); // positions of tokens that a second run hides, with their words
  let setup = null, running = null, player = null;

  function option(select, value, text) {
    make("option", "", select, text).value = value;
  }

  function say(text, wrong = false) {
    find("status").textContent = text;
    find("status").classList.toggle("wrong", wrong);
  }

  // The form

  function addDocument(given = { title: "", text: "", gold: false }) {
    const item = find("document").content.firstElementChild.cloneNode(true);
    item.querySelector(".title").value = given.title;
    item.querySelector(".title").maxLength = setup.limits.title;
    item.querySelector(".text").value = given.text;
    item.querySelector(".text").maxLength = setup.limits.text;
    item.querySelector(".gold input").checked = given.gold;
    item.querySelector(".hide input").addEventListener("change", showHidden);
    item.querySelector(".remove").addEventListener("click", () => { item.remove(); countDocuments(); });
    find("documents").append(item);
    countDocuments();
    return item;
  }

  function countDocuments() {
    const items = [...find("documents").children];
    items.forEach((item, place) => {
      item.querySelector(".number").textContent = place + 1;
      item.querySelector(".title").setAttribute("aria-label", `Title of document ${place + 1}`);
      item.querySelector(".text").setAttribute("aria-label", `Text of document ${place + 1}`);
      item.querySelector(".remove").setAttribute("aria-label", `Remove document ${place + 1}`);
      item.querySelector(".hide input").setAttribute("aria-label", `Hide document ${place + 1}`);
    });
    showHidden();
    find("count").textContent = items.length ? `(${items.length})` : "(none: from memory)";
    find("add").disabled = items.length >= setup.limits.documents;
  }

  function takeSample(sample) {
    find("question").value = sample.question;
    find("answers").value = sample.answers.join("\n");
    find("documents").replaceChildren();
    sample.documents.forEach(addDocument);
    hiddenTokens.clear();
    countDocuments();
    for (const name of ["slots", "steps"]) find(name).value = sample.slots ?? setup[name];
    const other = setup.models.find((model) => model.name === find("other").value);
    if (sample.slots && other?.kind === "arm") find("other").value = ""; // it writes at the end only
  }

  // What was typed outlives a reload of the page, not its tab.
  function keepForm() {
    sessionStorage.setItem("floatscope-form", JSON.stringify(request()));
  }

  function restoreForm() {
    const kept = JSON.parse(sessionStorage.getItem("floatscope-form"));
    if (!kept) return;
    takeSample(kept);
    const known = (name) => setup.models.some((model) => model.name === name);
    if (known(kept.models[0])) find("model").value = kept.models[0];
    find("other").value = known(kept.models[1]) ? kept.models[1] : "";
    for (const name of ["steps", "seed"]) find(name).value = kept[name];
  }

  function fillForm() {
    const { limits, models, samples } = setup;
    const all = samples.flatMap((group) => group.samples);
    let number = 0;
    for (const group of samples) {
      const part = make("optgroup", "", find("samples"));
      part.label = group.name;
      for (const sample of group.samples) option(part, number++, sample.question);
    }
    for (const model of models) option(find("model"), model.name, model.name);
    option(find("other"), "", "no other");
    for (const model of models) option(find("other"), model.name, model.name);
    const arm = models.find((model) => model.kind === "arm" && model.name !== models[0].name);
    find("other").value = arm ? arm.name : "";
    find("question").maxLength = limits.question;
    for (const name of ["slots", "steps", "seed"]) find(name).max = limits[name];
    find("samples").addEventListener("change", () => takeSample(all[Number(find("samples").value)]));
    find("model").addEventListener("change", offerOthers);
    find("add").addEventListener("click", () => addDocument().querySelector(".title").focus());
    takeSample(all[0]);
    restoreForm();
    offerOthers();
    find("fields").disabled = false;
    for (const name of ["input", "change", "click"]) find("form").addEventListener(name, keepForm);
  }

  // What a second run hides

  function hiddenDocuments() {
    return [...find("documents").children].flatMap((item, place) => (item.querySelector(".hide input").checked ? [place + 1] : []));
  }

  function showHidden() {
    const names = [...hiddenDocuments().map((number) => `document ${number}`), ...[...hiddenTokens.values()].map((word) => `“${word}”`)];
    find("hiding").hidden = !names.length;
    find("hidden-names").textContent = names.join(", ");
    for (const chip of document.querySelectorAll("#player .fs-token"))
      chip.classList.toggle("fs-hidden", hiddenTokens.has(Number(chip.dataset.token)));
  }

  function hideToken(event) {
    const chip = event.target.closest(".fs-token");
    if (!chip || !chip.dataset.token || chip.classList.contains("fs-slot")) return;
    if (event.type === "keydown" && event.key !== "Enter") return;
    const token = Number(chip.dataset.token);
    if (!hiddenTokens.delete(token)) hiddenTokens.set(token, chip.textContent);
    showHidden();
  }

  function showAll() {
    hiddenTokens.clear();
    for (const box of document.querySelectorAll(".hide input")) box.checked = false;
    showHidden();
  }

  // A model is not compared with itself.
  function offerOthers() {
    for (const other of find("other").options) other.disabled = other.value !== "" && other.value === find("model").value;
    if (find("other").value === find("model").value) find("other").value = "";
  }

  function request(again) {
    return {
      hidden: again ? [...hiddenDocuments().map((number) => `doc ${number}`), ...[...hiddenTokens.keys()].map(String)] : [],
      question: find("question").value,
      documents: [...find("documents").children].map((item) => ({
        title: item.querySelector(".title").value,
        text: item.querySelector(".text").value,
        gold: item.querySelector(".gold input").checked,
      })),
      answers: find("answers").value.split("\n").map((line) => line.trim()).filter(Boolean),
      models: [find("model").value, find("other").value].filter(Boolean),
      slots: Number(find("slots").value),
      steps: Number(find("steps").value),
      seed: Number(find("seed").value),
    };
  }

  // The run

  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) yield JSON.parse(part);
    }
  }

  // One model's answer as it fills: a box a slot, and how far it is.
  class Card {
    constructor(run) {
      this.run = run;
      this.steps = 0;
      this.item = make("li", "", find("results"));
      const head = make("div", "card-head", this.item);
      make("b", "", head, run.model);
      this.state = make("span", "card-state", head, "waiting");
      const slots = make("div", "card-slots", this.item);
      this.slots = run.slots.map(() => make("span", "fs-token fs-slot", slots));
      for (const slot of this.slots) {
        slot.dataset.state = "open";
        make("span", "fs-word", slot);
      }
    }

    advance(commits = []) {
      for (const slot of this.slots) if (slot.dataset.state === "commits") slot.dataset.state = "token";
      for (const [slot, text, , kind] of commits) {
        this.slots[slot].dataset.state = "commits";
        this.slots[slot].firstChild.textContent = text;
        this.slots[slot].classList.toggle("fs-special", kind === "special");
      }
      this.steps += 1;
      const { kind, foreseen } = this.run;
      this.state.textContent = kind === "arm" ? `token ${this.steps}, attention follows` : `step ${this.steps} of ${foreseen}`;
    }

    finish(data, seconds) {
      this.slots.splice(data.commit_step.length).forEach((slot) => slot.remove());
      for (const slot of this.slots) slot.dataset.state = "token";
      this.state.replaceChildren();
      if (data.correct !== null) {
        this.item.className = data.correct ? "right" : "wrong";
        make("i", "", this.state, data.correct ? "✓ right" : "✗ wrong");
        this.state.append(" · ");
      }
      this.state.append(`${this.steps} ${this.run.kind === "arm" ? "tokens" : "steps"} in ${seconds.toFixed(2)} s`);
      this.item.dataset.prediction = data.prediction;
      const { unknown } = this.run;
      if (unknown) make("p", "card-note", this.item, `${unknown} ${unknown === 1 ? "token" : "tokens"} of the prompt are not in its vocabulary: it reads them as unknown.`);
    }
  }

  class Show {
    constructor(again) {
      this.again = again;
      this.layerChosen = false;
      this.shownAt = 0;
      this.ended = false;
    }

    async handle(event) {
      if (event.event === "step" || event.event === "token") {
        await wait(Math.max(0, this.shownAt + PACE - performance.now()));
        this.shownAt = performance.now();
      }
      this[event.event](event);
    }

    queued({ before }) {
      say(before ? `waiting: ${before} ${before === 1 ? "job is" : "jobs are"} before yours` : "starting");
    }

    opened({ question, answers, runs }) {
      this.runs = runs;
      this.cards = runs.map((run) => new Card(run));
      const root = document.createElement("div");
      find("player").replaceChildren(root);
      find("before").hidden = true;
      find("arm-note").hidden = !runs.some((run) => run.kind === "arm");
      player = floatscope.player = new floatscope.Player(root, { samples: [{ id: "", title: "", question, answers, runs }] });
      player.models = runs.map((run) => run.model);
      player.openSample(0);
      if (find("watch").getBoundingClientRect().top > 0.5 * innerHeight) find("watch").scrollIntoView();
    }

    step({ run, step }) {
      player.push(run, step);
      this.chooseLayer();
      this.count(run, step.commits);
    }

    // An ARM's token: its step has no attention yet.
    token({ run, commits }) {
      const { layers, tokens } = this.runs[run];
      const data = btoa("\0".repeat(2 * layers * tokens.length));
      player.push(run, { received: { scale: 0, data }, anchors: Array.from({ length: layers }, () => []), commits });
      this.count(run, commits);
    }

    count(run, commits) {
      const { model, kind } = this.runs[run];
      this.cards[run].advance(commits);
      say(`${model} ${kind === "arm" ? "writes" : "denoises"}`);
    }

    finished({ run, data, seconds }) {
      player.finish(run, data);
      this.chooseLayer();
      this.cards[run].finish(data, seconds);
      showHidden();
    }

    chooseLayer() {
      if (this.layerChosen) return;
      this.layerChosen = true;
      player.goLayer(player.tellingLayer());
    }

    // The trace of a run as a file, to be saved.
    trace({ file, data }) {
      this.tools ||= floatscope.filmTools(player);
      const button = make("button", "", this.tools, file);
      button.type = "button";
      button.addEventListener("click", () => floatscope.saveBytes(file, data));
    }

    done() {
      this.ended = true;
      const [first, second] = this.cards.map((card) => card.item.dataset.prediction);
      if (!this.again) say("done: go back through steps and layers, or press play");
      else if (first === second) say(`done: the answer stays “${first}”`);
      else {
        make("p", "card-note changed", this.cards[1].item, `changed from “${first}”`);
        say(`done: the answer changes from “${first}” to “${second}”`);
      }
    }

    error({ sentence }) {
      this.ended = true;
      say(sentence, true);
    }
  }

  async function start(again) {
    const show = new Show(again);
    running = new AbortController();
    find("results").replaceChildren();
    find("start").disabled = find("again").disabled = true;
    find("stop").hidden = false;
    say("sending");
    try {
      const response = await fetch("jobs", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(request(again)),
        signal: running.signal,
      });
      if (!response.ok) show.error(await response.json());
      else for await (const event of lines(response)) {
        if (running.signal.aborted) break;
        await show.handle(event);
      }
      if (!show.ended) say(running.signal.aborted ? "stopped" : "the server ended the run: see its terminal", !running.signal.aborted);
    } catch (error) {
      if (error.name === "AbortError") say("stopped");
      else say("the server cannot be reached: is floatscope serve still running?", true);
    } finally {
      find("start").disabled = find("again").disabled = false;
      find("stop").hidden = true;
    }
  }

  async function open() {
    floatscope.themeButton(find("theme"));
    find("form").addEventListener("submit", (event) => { event.preventDefault(); start(event.submitter === find("again")); });
    find("unhide").addEventListener("click", showAll);
    for (const kind of ["click", "keydown"]) find("player").addEventListener(kind, hideToken);
    find("question").addEventListener("input", () => { hiddenTokens.clear(); showHidden(); }); // positions are another text's
    find("stop").addEventListener("click", () => running.abort());
    try {
      setup = await (await fetch("setup.json")).json();
    } catch {
      return say("the server cannot be reached: is floatscope serve still running?", true);
    }
    fillForm();
    say(`${setup.models.length} ${setup.models.length === 1 ? "model is" : "models are"} ready`);
  }

  open();
})();
