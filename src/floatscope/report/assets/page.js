// The report's own few lines: the theme switch and the CSV of the headline table. Player and figures are components.
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
  document.querySelectorAll("[data-csv]").forEach((one) => one.addEventListener("click", () => {
    floatscope.save(`${one.dataset.name}.csv`, "text/csv", JSON.parse(document.getElementById(one.dataset.csv).textContent));
  }));
})();
