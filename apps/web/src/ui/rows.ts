// Long lists: only the rows in sight are in the page. Their heights differ, so each is measured once it is there; the
// others are taken to be as high as an estimate.
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

const SPARE_PX = 600;

export interface Rows {
  /** Rows `first` until `end` are to be rendered, each with `data-row`. */
  first: number;
  end: number;
  /** Heights in place of those that are not, in px. */
  before: number;
  after: number;
  onScroll: () => void;
  /** Brings a row to the top, or the end of the last one to the bottom. */
  scrollTo: (row: number | "end") => void;
}

export function useRows(frame: { current: HTMLElement | null }, count: number, estimate: number): Rows {
  const heights = useRef(new Map<number, number>());
  const [view, setView] = useState({ top: 0, height: 800, round: 0 });
  // What is scrolled to stays in place while rows load and are measured, until somebody scrolls elsewhere.
  const aim = useRef<number | "end" | null>(null);
  const placed = useRef(0);

  // Where each row begins; the last entry is the whole height.
  const starts = useMemo(() => {
    const sums = new Float64Array(count + 1);
    for (let row = 0; row < count; row += 1) sums[row + 1] = (sums[row] ?? 0) + (heights.current.get(row) ?? estimate);
    return sums;
  }, [count, estimate, view.round]);
  const startOf = (row: number) => starts[Math.max(0, Math.min(row, count))] ?? 0;
  const rowAt = (px: number) => {
    let low = 0;
    let high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((starts[middle + 1] ?? 0) <= px) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const first = Math.max(0, Math.min(rowAt(view.top - SPARE_PX), count - 1));
  const end = Math.min(count, rowAt(view.top + view.height + SPARE_PX) + 1);

  const onScroll = () => {
    const element = frame.current;
    if (element && Math.abs(element.scrollTop - placed.current) > 2) {
      // Who scrolls to the end wants to see it, also when the rows there are read anew and grow.
      const below = element.scrollHeight - element.scrollTop - element.clientHeight;
      aim.current = below <= 2 ? "end" : null;
    }
    look();
  };
  const look = useCallback(() => {
    const element = frame.current;
    if (!element) return;
    setView((before) => {
      const { scrollTop: top, clientHeight: height } = element;
      return before.top === top && before.height === height ? before : { ...before, top, height };
    });
  }, [frame]);

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const seen = rowAt(element.scrollTop);
    let moved = 0;
    let changed = false;
    for (const each of element.querySelectorAll<HTMLElement>("[data-row]")) {
      const row = Number(each.dataset.row);
      const was = heights.current.get(row) ?? estimate;
      const is = each.getBoundingClientRect().height;
      if (Math.abs(is - was) < 0.5 && heights.current.has(row)) continue;
      heights.current.set(row, is);
      changed = changed || is !== was;
      if (row < seen) moved += is - was;
    }
    if (changed) setView((before) => ({ ...before, round: before.round + 1 }));
    if (aim.current !== null) {
      const to = aim.current === "end" ? element.scrollHeight : startOf(aim.current);
      if (Math.abs(element.scrollTop - to) > 1) element.scrollTop = to;
      placed.current = element.scrollTop;
    } else if (moved !== 0) element.scrollTop += moved; // what is in sight stays where it is
    look();
  });

  const rowAtNow = useRef(rowAt);
  rowAtNow.current = rowAt;
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    let width = element.clientWidth;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth !== width) {
        // No row is as high as it was: what is in sight stays, and all are measured again.
        width = element.clientWidth;
        aim.current ??= rowAtNow.current(element.scrollTop);
        heights.current.clear();
      }
      setView((before) => ({ ...before, round: before.round + 1 }));
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, [frame]);

  const scrollTo = useCallback((row: number | "end") => {
    aim.current = row;
    setView((before) => ({ ...before, round: before.round + 1 }));
  }, []);
  return { first, end, before: startOf(first), after: startOf(count) - startOf(end), onScroll, scrollTo };
}
