import { useEffect, useRef } from "preact/hooks";

/** Where the keyboard goes on after this changed, if what had its focus went with the change. */
export function useKeptFocus<T extends HTMLElement>(change: unknown) {
  const own = useRef<T>(null);
  const before = useRef(change);
  useEffect(() => {
    if (before.current === change) return;
    before.current = change;
    if (document.activeElement === document.body) own.current?.focus();
  }, [change]);
  return own;
}
