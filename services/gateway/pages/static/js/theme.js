// Sets the theme before anything is drawn: the one chosen here, else the one of the system.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => { try { return localStorage.getItem("ryz.theme"); } catch { return null; } };
  const set = () => { document.documentElement.dataset.theme = read() ?? (system.matches ? "dark" : "light"); };
  set();
  system.addEventListener("change", set);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme")?.addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("ryz.theme", next); } catch { /* a browser that keeps nothing */ }
      document.documentElement.dataset.theme = next;
    });
  });
})();
