// What happens in the tenant's sessions while the page is in sight: one stream for the whole page. A browser has six
// connections to a service for all of its tabs: those of tabs that nobody sees would keep the others waiting for ever.
import { type ComponentChildren, createContext } from "preact";
import { useCallback, useContext, useEffect, useRef, useState } from "preact/hooks";
import { events } from "./api";
import type { TurnState } from "./types";

export interface TurnChange {
  session_id: string;
  turn_id: string;
  seq: number;
  status: TurnState;
}

type Listener = (change: TurnChange | null) => void;

interface Live {
  connected: boolean;
  listen: (listener: Listener) => () => void;
  notify: Listener;
}

const LiveContext = createContext<Live>({
  connected: false,
  listen: () => () => undefined,
  notify: () => undefined,
});

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 5000;

export function LiveProvider({ children }: { children: ComponentChildren }) {
  const listeners = useRef(new Set<Listener>());
  const [connected, setConnected] = useState(false);
  const notify = useCallback((change: TurnChange | null) => {
    for (const listener of listeners.current) listener(change);
  }, []);

  useEffect(() => {
    let abort = new AbortController();
    const look = () => {
      abort.abort();
      setConnected(false);
      abort = new AbortController();
      if (!document.hidden) void follow(abort.signal, notify, setConnected);
    };
    look();
    document.addEventListener("visibilitychange", look);
    // A network that went away may leave the stream open and silent.
    window.addEventListener("offline", look);
    window.addEventListener("online", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      window.removeEventListener("offline", look);
      window.removeEventListener("online", look);
      abort.abort();
    };
  }, [notify]);

  const listen = useRef((listener: Listener) => {
    listeners.current.add(listener);
    return () => {
      listeners.current.delete(listener);
    };
  });
  return <LiveContext.Provider value={{ connected, listen: listen.current, notify }}>{children}</LiveContext.Provider>;
}

/** Reads the stream for ever. Whoever listened before it began, or through a gap, gets `null`: changes may have been missed. */
async function follow(signal: AbortSignal, notify: Listener, setConnected: (now: boolean) => void): Promise<void> {
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      for await (const event of events("events", { signal })) {
        if (event.name === "stream.ready") {
          setConnected(true);
          wait = FIRST_WAIT_MS;
          notify(null);
        } else if (event.name === "turn.changed") notify(event.data as TurnChange);
        else if (event.name === "stream.gap") notify(null);
      }
    } catch {
      // What it means is in the state below; a key that is refused has led to the sign-in already.
    }
    if (signal.aborted) return;
    setConnected(false);
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

/** Whether what the page shows is up to date: changes are followed. */
export function LiveStatus() {
  const { connected } = useContext(LiveContext);
  return (
    <span class={connected ? "live on" : "live"} role="status">
      {connected ? "live" : "not live"}
    </span>
  );
}

/** Calls back for every turn that changes, and with null when some may have been missed. */
export function useTurnChanges(callback: Listener): void {
  const { listen } = useContext(LiveContext);
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => listen((change) => latest.current(change)), [listen]);
}

/** For what the page itself changed and no event reports: all that listen are called back with null. */
export function useNotice(): () => void {
  const { notify } = useContext(LiveContext);
  return () => notify(null);
}

/** Runs `todo` at most once in `ms`, the last call always. */
export function useThrottled(todo: () => void, ms: number): () => void {
  const latest = useRef(todo);
  latest.current = todo;
  const timer = useRef<number | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const [later] = useState(() => () => {
    timer.current ??= window.setTimeout(() => {
      timer.current = undefined;
      latest.current();
    }, ms);
  });
  return later;
}
