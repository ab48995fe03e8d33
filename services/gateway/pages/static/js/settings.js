// The dialog with the sampling settings, the system prompt and the key.
import * as store from "./store.js";

const dialog = document.getElementById("settings");
const form = document.getElementById("settings-form");
const note = document.getElementById("key-note");
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export function openSettings(focus, words = "") {
  note.hidden = !words;
  note.textContent = words;
  const kept = store.settings.read();
  for (const name of ["system", ...NUMBERS]) form.elements[name].value = kept[name] ?? "";
  form.elements.key.value = store.key.read();
  form.elements.keep.checked = store.key.kept();
  if (!dialog.open) dialog.showModal();
  if (focus) form.elements[focus].focus();
}

export function onSaved(saved) {
  dialog.addEventListener("close", () => {
    const values = { ...store.settings.read(), system: form.elements.system.value };
    for (const name of NUMBERS) {
      const input = form.elements[name];
      values[name] = input.value !== "" && input.validity.valid ? input.valueAsNumber : "";
    }
    store.settings.write(values);
    store.key.write(form.elements.key.value.trim(), form.elements.keep.checked);
    saved();
  });
}

export function sampling() {
  const kept = store.settings.read();
  return Object.fromEntries(NUMBERS.filter((name) => (kept[name] ?? "") !== "").map((name) => [name, kept[name]]));
}
