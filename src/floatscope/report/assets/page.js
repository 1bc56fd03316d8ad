// The report's own few lines: the theme switch, the player, and the CSV of Table 1.
(() => {
  const { floatscope } = window;
  const button = document.getElementById("theme");
  const paint = () => {
    const dark = floatscope.theme() === "dark";
    button.textContent = dark ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
  };
  button.addEventListener("click", () => floatscope.setTheme(floatscope.theme() === "dark" ? "light" : "dark"));
  window.addEventListener("floatscope-theme", paint);
  paint();
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const room = document.getElementById("player-root");
  if (room) floatscope.player = new floatscope.Player(room, data("player-data"));
  document.querySelectorAll("[data-csv]").forEach((one) => one.addEventListener("click", () => {
    floatscope.save(`${one.dataset.name}.csv`, "text/csv", data(one.dataset.csv));
  }));
})();
