// What the pages keep in the browser. A browser that keeps nothing still works until the tab is closed.
const memory = new Map();

function get(area, name) {
  try { return JSON.parse(area().getItem(name)); } catch { return memory.get(name) ?? null; }
}

function set(area, name, value) {
  try {
    if (value === null) area().removeItem(name);
    else area().setItem(name, JSON.stringify(value));
  } catch { memory.set(name, value); }
}

const local = () => localStorage;
const tab = () => sessionStorage;
const MOST_TITLES = 200;

export const settings = {
  read: () => get(local, "ryz.settings") ?? {},
  write: (value) => set(local, "ryz.settings", value),
};

export const key = {
  read: () => get(tab, "ryz.key") ?? get(local, "ryz.key") ?? "",
  kept: () => get(local, "ryz.key") !== null,
  write(value, keep) {
    set(tab, "ryz.key", value || null);
    set(local, "ryz.key", keep && value ? value : null);
  },
};

// The conversation of this tab and the answer that runs in it; both survive a reload.
export const chat = { read: () => get(tab, "ryz.chat"), write: (value) => set(tab, "ryz.chat", value) };
export const run = { read: () => get(tab, "ryz.run"), write: (value) => set(tab, "ryz.run", value) };

export const titles = {
  of: (id) => (get(local, "ryz.titles") ?? {})[id],
  write(id, title) {
    const others = Object.entries(get(local, "ryz.titles") ?? {}).filter(([one]) => one !== id);
    const kept = others.slice(-(MOST_TITLES - 1));
    if (title) kept.push([id, title]);
    set(local, "ryz.titles", Object.fromEntries(kept));
  },
};
