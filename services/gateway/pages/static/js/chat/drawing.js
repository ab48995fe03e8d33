// Draws at most once in a frame, and seldomer where drawing takes long. `draw` returns whether it showed
// anything of the answer: what comes first waits for the next frame only, however long an empty turn took.
export function drawing(draw) {
  let asked = false, over = false, rest = 0;
  const frame = () => {
    asked = false;
    if (over) return;
    const began = performance.now();
    const shown = draw();
    rest = shown ? performance.now() - began : 0;
  };
  return {
    ask() {
      if (asked) return;
      asked = true;
      if (rest > 8) setTimeout(() => requestAnimationFrame(frame), 4 * rest);
      else requestAnimationFrame(frame);
    },
    end() { over = true; },
  };
}
