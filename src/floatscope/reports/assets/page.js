// The report's own few lines: the theme switch, the player, and the CSV of Table 1.
(() => {
  const { floatscope } = window;
  floatscope.themeButton(document.getElementById("theme"));
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const room = document.getElementById("player-root");
  if (room) {
    const player = (floatscope.player = new floatscope.Player(room, data("player-data")));
    floatscope.filmTools(player);
    // It plays once when it is first seen, unless the reader wants no motion.
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      const watch = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        watch.disconnect();
        player.play();
      }, { threshold: 0.2 });
      watch.observe(room);
    }
  }
  const list = document.getElementById("samples-root");
  if (list) floatscope.samples = new floatscope.Samples(list, data("samples-data"), floatscope.player);
  document.querySelectorAll("[data-csv]").forEach((one) => one.addEventListener("click", () => {
    floatscope.saveCsv(one.dataset.name, data(one.dataset.csv));
  }));
})();
