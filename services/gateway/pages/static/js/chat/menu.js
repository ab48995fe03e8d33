// The list of conversations where it covers the page, on narrow screens.
const at = (id) => document.getElementById(id);

export const isOpen = () => "open" in at("sidebar").dataset;

export function close() {
  delete at("sidebar").dataset.open;
  at("shade").hidden = true;
  at("menu").setAttribute("aria-expanded", "false");
}

at("menu").addEventListener("click", () => {
  at("sidebar").dataset.open = "";
  at("shade").hidden = false;
  at("menu").setAttribute("aria-expanded", "true");
  at("new-chat").focus();
});
at("shade").addEventListener("click", close);
