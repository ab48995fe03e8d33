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
const MOST_UNSAVED = 20;

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
// Answers that are being written, by session.
export const runs = {
  all: () => Object.values(get(tab, "ryz.runs") ?? {}),
  write(id, value) {
    const { [id]: _, ...others } = get(tab, "ryz.runs") ?? {};
    set(tab, "ryz.runs", value ? { ...others, [id]: value } : others);
  },
};

// Conversations whose last answer was stopped or broke off: the cluster stores whole turns only.
export const unsaved = newest("ryz.unsaved", MOST_UNSAVED);
// Conversations with more than one version of a message: the cluster stores one of them.
export const branches = newest("ryz.branches", MOST_UNSAVED);

function newest(name, most) {
  return {
    all: () => Object.values(get(local, name) ?? {}),
    of: (id) => (get(local, name) ?? {})[id],
    write(id, value) {
      const { [id]: _, ...others } = get(local, name) ?? {};
      const kept = Object.entries(others).slice(-(most - 1));
      set(local, name, Object.fromEntries(value ? [...kept, [id, value]] : kept));
    },
  };
}

export const titles = {
  of: (id) => (get(local, "ryz.titles") ?? {})[id],
  write(id, title) {
    const others = Object.entries(get(local, "ryz.titles") ?? {}).filter(([one]) => one !== id);
    const kept = others.slice(-(MOST_TITLES - 1));
    if (title) kept.push([id, title]);
    set(local, "ryz.titles", Object.fromEntries(kept));
  },
};
