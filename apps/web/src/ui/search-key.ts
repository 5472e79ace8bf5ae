import { useEffect, useRef } from "preact/hooks";

/** The field that Ctrl+K, or ⌘K, leads to from anywhere on the page. */
export function useSearchKey() {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const follow = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey)
        return;
      event.preventDefault();
      field.current?.focus();
      field.current?.select();
    };
    window.addEventListener("keydown", follow);
    return () => window.removeEventListener("keydown", follow);
  }, []);
  return field;
}
