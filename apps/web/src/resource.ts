// What a page reads from the service: its value, whether it is still coming, and what went wrong.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";

export interface Resource<T> {
  value: T | null;
  problem: string | null;
  loading: boolean;
  reload: () => void;
}

/** Reads again when an input changes or `reload` is called; the old value stays until the new one is there. */
export function useResource<T>(read: (signal: AbortSignal) => Promise<T>, inputs: readonly unknown[]): Resource<T> {
  const [state, setState] = useState<Omit<Resource<T>, "reload">>({ value: null, problem: null, loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    const abort = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    latest.current(abort.signal).then(
      (value) => !abort.signal.aborted && setState({ value, problem: null, loading: false }),
      (error: unknown) => {
        if (!abort.signal.aborted) setState((before) => ({ ...before, problem: sentenceOf(error), loading: false }));
      },
    );
    return () => abort.abort();
  }, [...inputs, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { ...state, reload };
}

export function sentenceOf(error: unknown): string {
  if (error instanceof Problem) return error.body.detail;
  return error instanceof Error ? error.message : String(error);
}
