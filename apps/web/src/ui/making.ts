// What a button starts: making a session and going to it, for example.
import { useEffect, useRef, useState } from "preact/hooks";
import { goTo } from "../router";

export interface Making {
  busy: boolean;
  /** Why the last one was not done. */
  error: unknown;
  /** `todo` may give an address to go to. */
  make: (todo: () => Promise<string | void>) => Promise<void>;
}

/** Once at a time: a second click makes no second session. Whoever went elsewhere meanwhile stays there. */
export function useMaking(): Making {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const running = useRef(false);
  const isHere = useRef(true);
  useEffect(
    () => () => {
      isHere.current = false;
    },
    [],
  );

  async function make(todo: () => Promise<string | void>) {
    if (running.current) return;
    running.current = true;
    setBusy(true);
    setError(null);
    try {
      const address = await todo();
      if (isHere.current && address !== undefined) goTo(address);
    } catch (why) {
      setError(why);
    } finally {
      running.current = false;
      setBusy(false);
    }
  }
  return { busy, error, make };
}
