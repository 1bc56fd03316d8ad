// Light or dark: the reader's choice where one was made, else the system's. Runs before anything is drawn.
(() => {
  const floatscope = (window.floatscope = window.floatscope || {});
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => { try { return localStorage.getItem("floatscope-theme"); } catch { return null; } };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    window.dispatchEvent(new Event("floatscope-theme"));
  };
  floatscope.theme = () => document.documentElement.dataset.theme;
  floatscope.setTheme = (theme) => {
    try { localStorage.setItem("floatscope-theme", theme); } catch { /* a private window forgets */ }
    apply(theme);
  };
  // A button that names the theme it switches to.
  floatscope.themeButton = (button) => {
    const other = () => (floatscope.theme() === "dark" ? "light" : "dark");
    const paint = () => {
      button.textContent = other();
      button.setAttribute("aria-label", `Switch to the ${other()} theme`);
    };
    button.addEventListener("click", () => floatscope.setTheme(other()));
    window.addEventListener("floatscope-theme", paint);
    paint();
  };
  system.addEventListener("change", () => { if (!chosen()) apply(system.matches ? "dark" : "light"); });
  apply(chosen() || (system.matches ? "dark" : "light"));
})();
