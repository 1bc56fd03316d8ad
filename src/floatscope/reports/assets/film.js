// A picture and a film of what the player shows: question, answers, maps and bars drawn on one canvas. Needs player.js before it.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  if (floatscope.film) return;

  const WIDE = 1280, EDGE = 32, LINE = 26, MAP = 180, HOLD = 600; // pixels; a step of the film takes HOLD milliseconds
  const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));

  function save(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function canvasFor(player) {
    const canvas = document.createElement("canvas");
    const lines = Math.max(...player.panels.map((panel) => panel.bars.childElementCount));
    canvas.width = WIDE;
    canvas.height = 3 * EDGE + MAP + (5 + lines) * LINE;
    return canvas;
  }

  function cut(pen, text, room) {
    while (text.length > 1 && pen.measureText(text).width > room) text = text.slice(0, -2) + "…";
    return text;
  }

  // The moment that the player shows.
  function paint(player, canvas) {
    const pen = canvas.getContext("2d"), style = getComputedStyle(player.root);
    const [card, ink, muted, heat, soft] = ["card", "ink", "muted", "heat", "soft"].map((name) => style.getPropertyValue(`--fs-${name}`).trim());
    const say = (text, x, y, room, colour = ink, weight = 400) => {
      pen.fillStyle = colour;
      pen.font = `${weight} 18px ${style.fontFamily}`;
      pen.fillText(cut(pen, text, room), x, y);
    };
    pen.fillStyle = card;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    say(player.samples[player.sample].question, EDGE, EDGE + 10, WIDE - 2 * EDGE - 220, ink, 600);
    say(`step ${player.step} of ${player.steps - 1}, layer ${player.layerSlider.output.textContent.split(" ")[0]}`, WIDE - EDGE - 200, EDGE + 10, 200, muted);
    const room = (WIDE - EDGE) / player.panels.length - EDGE;
    player.panels.forEach((panel, place) => {
      const left = EDGE + place * (room + EDGE);
      let top = 2 * EDGE + LINE;
      say(`${panel.run.data.model} ${panel.verdict.textContent}`, left, top, room, muted);
      say(panel.run.answer(panel.at), left, top + LINE, room, ink, 600);
      top += 1.5 * LINE;
      pen.fillStyle = soft;
      pen.fillRect(left, top, room, MAP);
      if (panel.map.width) pen.drawImage(panel.map, left, top, room, MAP);
      top += MAP + LINE;
      for (const bar of panel.bars.hidden ? [] : panel.bars.children) {
        say(bar.children[0].textContent, left, top, 120, muted);
        pen.fillStyle = heat;
        pen.fillRect(left + 130, top - 13, Number(bar.dataset.mass) * (room - 220), 14);
        say(bar.children[2].textContent, left + room - 80, top, 80, muted);
        top += LINE;
      }
    });
  }

  floatscope.picture = async (player) => {
    const canvas = canvasFor(player);
    paint(player, canvas);
    save("floatscope.png", await new Promise((done) => canvas.toBlob(done)));
  };

  floatscope.film = async (player) => {
    const canvas = canvasFor(player), parts = [];
    player.pause();
    player.go(0);
    paint(player, canvas);
    const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: "video/webm" });
    recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
    const ended = new Promise((done) => recorder.addEventListener("stop", done));
    recorder.start();
    for (let step = 0; step < player.steps; step++) {
      player.go(step);
      paint(player, canvas);
      await wait(HOLD);
    }
    recorder.stop();
    await ended;
    save("floatscope.webm", new Blob(parts, { type: "video/webm" }));
  };

  floatscope.saveBytes = (name, data) => save(name, new Blob([Uint8Array.from(atob(data), (one) => one.charCodeAt(0))]));

  // Buttons for both below a player.
  floatscope.filmTools = (player) => {
    const tools = floatscope.make("div", "fs-tools", player.root);
    for (const [name, does] of [["PNG", floatscope.picture], ["WebM", floatscope.film]]) {
      const button = floatscope.make("button", "", tools, name);
      button.type = "button";
      button.addEventListener("click", async () => {
        button.disabled = true;
        await does(player);
        button.disabled = false;
      });
    }
    return tools;
  };
})();
