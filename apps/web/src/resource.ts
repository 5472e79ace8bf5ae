// What a page reads from the service: its value, whether it is still coming, and what went wrong.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";
import { useTurnChanges } from "./live";

export interface Resource<T> {
  value: T | null;
  problem: string | null;
  loading: boolean;
  reload: () => void;
}

/**
 * Reads again when an input or the version changes or `reload` is called; the old value stays until the new one is there.
 * A new version lets a reading end before it reads again: in a busy session the value would never come otherwise.
 */
export function useResource<T>(
  read: (signal: AbortSignal) => Promise<T>,
  inputs: readonly unknown[],
  version = 0,
): Resource<T> {
  const [state, setState] = useState<Omit<Resource<T>, "reload">>({ value: null, problem: null, loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  const reading = useRef<{ abort: AbortController; again: boolean } | null>(null);

  const begin: () => void = useCallback(() => {
    const own = { abort: new AbortController(), again: false };
    reading.current = own;
    setState((before) => ({ ...before, loading: true }));
    const end = (change: Partial<typeof state>) => {
      if (own.abort.signal.aborted) return;
      reading.current = null;
      setState((before) => ({ ...before, ...change, loading: false }));
      if (own.again) begin();
    };
    latest.current(own.abort.signal).then(
      (value) => end({ value, problem: null }),
      (error: unknown) => end({ problem: sentenceOf(error) }),
    );
  }, []);

  useEffect(() => {
    begin();
    return () => {
      reading.current?.abort.abort();
      reading.current = null;
    };
  }, inputs);
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) isFirst.current = false;
    else if (reading.current) reading.current.again = true;
    else begin();
  }, [version, round]);

  const reload = useCallback(() => setRound((before) => before + 1), []);
  // The service is back, or was not read for a while: what failed then may not now.
  useTurnChanges((change) => {
    if (change === null && state.problem !== null) reload();
  });
  return { ...state, reload };
}

export function sentenceOf(error: unknown): string {
  if (error instanceof Problem) return error.body.detail;
  return error instanceof Error ? error.message : String(error);
}
