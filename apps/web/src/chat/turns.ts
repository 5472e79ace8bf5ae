// The turns of a chat, read in pages around what is in sight.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Page } from "../api";
import { sentenceOf } from "../resource";
import type { ListedTurn } from "../types";

const AT_ONCE = 40;
const MOST_PAGES = 12;

export interface Turns {
  /** A turn by its number, once it is there. */
  of: (seq: number) => ListedTurn | undefined;
  problem: string | null;
  /** Reads the pages in sight again. */
  reload: () => void;
}

/** Turns `first` through `last` of a session, numbers from 1, and those that were in sight lately. */
export function useTurns(sessionId: string, first: number, last: number): Turns {
  const [pages, setPages] = useState(() => new Map<number, ListedTurn[]>());
  const [problem, setProblem] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  const read = useRef(new Map<number, number>());
  const from = Math.floor((Math.max(1, first) - 1) / AT_ONCE);
  const to = Math.floor((Math.max(1, last) - 1) / AT_ONCE);

  const isNone = last < first || last < 1;

  useEffect(() => {
    if (isNone) return;
    for (let page = from; page <= to; page += 1) {
      if (read.current.get(page) === round) continue;
      read.current.set(page, round);
      const query = { from_seq: page * AT_ONCE + 1, limit: AT_ONCE };
      call<Page<ListedTurn>>(`sessions/${sessionId}/turns`, { query }).then(
        ({ items }) => {
          if (read.current.get(page) !== round) return; // a later reading of the same page is on its way
          setProblem(null);
          setPages((before) =>
            new Map([...before].filter(([each]) => each !== page).slice(-MOST_PAGES)).set(page, items),
          );
        },
        (error: unknown) => {
          read.current.delete(page);
          setProblem(sentenceOf(error));
        },
      );
    }
    for (const page of read.current.keys()) {
      if ((page < from || page > to) && read.current.get(page) !== round) read.current.delete(page);
    }
  }, [sessionId, from, to, round, isNone]);

  return {
    of: (seq) => pages.get(Math.floor((seq - 1) / AT_ONCE))?.[(seq - 1) % AT_ONCE],
    problem,
    reload: () => setRound((before) => before + 1),
  };
}
