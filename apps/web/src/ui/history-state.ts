import { useEffect, useState } from "preact/hooks";
import { useSettled } from "./settled";

/** A state that the page's entry in the browser's history keeps: Back leads to it, and a reload does not clear it. */
export function useHistoryState<T>(name: string, initial: T): [T, (to: T) => void] {
  const [value, setValue] = useState<T>(() => (history.state as Record<string, T> | null)?.[name] ?? initial);
  const settled = useSettled(value, 250); // browsers refuse to keep every letter
  useEffect(() => history.replaceState({ ...history.state, [name]: settled }, ""), [name, settled]);
  return [value, setValue];
}
