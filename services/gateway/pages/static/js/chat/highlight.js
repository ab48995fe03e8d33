// Colours of code. highlight.js and its grammars are loaded when a block needs them.
import DOMPurify from "../../vendor/purify.es.mjs";

const GRAMMARS = ["bash", "cpp", "css", "diff", "go", "java", "javascript", "json", "python", "rust", "sql", "typescript", "xml", "yaml"];
const OTHER_NAMES = {
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", c: "cpp", "c++": "cpp", h: "cpp", hpp: "cpp", cc: "cpp", patch: "diff", golang: "go",
  js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", jsonc: "json", py: "python", python3: "python", rs: "rust",
  ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", xhtml: "xml", yml: "yaml",
};
const SPANS = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true };
const MOST_CHARACTERS = 40_000; // a longer block stays plain: it is drawn again with each part of an answer
const MOST_KEPT = 40;

let library = null; // once it is loaded
const grammars = new Map(); // language: true once it can be used, false while it is loaded or if that failed
const kept = new Map(); // drawn blocks, by language and text

function grammarOf(word) {
  const name = word.toLowerCase();
  const found = OTHER_NAMES[name] ?? name;
  return GRAMMARS.includes(found) ? found : "";
}

async function load(language) {
  grammars.set(language, false);
  try {
    const [core, grammar] = await Promise.all([import("../../vendor/highlight/core.min.js"), import(`../../vendor/highlight/${language}.min.js`)]);
    library = core.default;
    library.registerLanguage(language, grammar.default);
    grammars.set(language, true);
  } catch { return; } // the code stays plain
  for (const code of document.querySelectorAll(`code[data-language="${language}"]:not([data-coloured])`)) paint(code, language);
}

function paint(code, language) {
  const text = code.textContent, name = `${language}\n${text}`;
  if (!kept.has(name)) {
    kept.set(name, DOMPurify.sanitize(library.highlight(text, { language, ignoreIllegals: true }).value, SPANS));
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  code.replaceChildren(kept.get(name).cloneNode(true));
  code.dataset.coloured = "";
}

// Colours the text of an element by the language that the answer names; at once, or when the grammar is loaded.
export function colour(code, word) {
  const language = grammarOf(word);
  if (!language || code.textContent.length > MOST_CHARACTERS) return;
  code.dataset.language = language;
  if (grammars.get(language)) paint(code, language);
  else if (!grammars.has(language)) load(language);
}
