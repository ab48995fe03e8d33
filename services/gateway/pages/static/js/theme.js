// Sets the theme before anything is drawn: the one chosen here, else the one of the system.
(() => {
  const NEXT = { system: "dark", dark: "light", light: "system" };
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "system";
  try { chosen = localStorage.getItem("ryz.theme") ?? chosen; } catch { /* a browser that keeps nothing */ }
  if (!(chosen in NEXT)) chosen = "system";
  const button = () => document.getElementById("theme");
  const set = () => {
    document.documentElement.dataset.theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
    if (button()) button().textContent = `Theme: ${chosen}`;
  };
  set();
  system.addEventListener("change", set);
  addEventListener("DOMContentLoaded", () => {
    set();
    button()?.addEventListener("click", () => {
      chosen = NEXT[chosen];
      try { localStorage.setItem("ryz.theme", chosen); } catch { /* a browser that keeps nothing */ }
      set();
    });
  });
})();
