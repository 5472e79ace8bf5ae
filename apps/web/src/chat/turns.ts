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

interface Read {
  items: ListedTurn[];
  /** What it was read for: another round reads it again. */
  round: number;
}

/** Turns `first` through `last` of a session, numbers from 1, and those that were in sight lately. */
export function useTurns(sessionId: string, first: number, last: number): Turns {
  const [pages, setPages] = useState(() => new Map<number, Read>());
  const [problem, setProblem] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  const latest = useRef(round);
  latest.current = round;
  const onTheirWay = useRef(new Set<number>());
  const from = Math.floor((Math.max(1, first) - 1) / AT_ONCE);
  const to = Math.floor((Math.max(1, last) - 1) / AT_ONCE);

  const isNone = last < first || last < 1;

  // A page that is on its way is let end before it is read again: in a busy session it would never come otherwise.
  useEffect(() => {
    if (isNone) return;
    for (let page = from; page <= to; page += 1) {
      if (onTheirWay.current.has(page) || pages.get(page)?.round === round) continue;
      onTheirWay.current.add(page);
      const query = { from_seq: page * AT_ONCE + 1, limit: AT_ONCE };
      call<Page<ListedTurn>>(`sessions/${sessionId}/turns`, { query }).then(
        ({ items }) => {
          onTheirWay.current.delete(page);
          setProblem(null);
          setPages((before) =>
            new Map([...before].filter(([each]) => each !== page).slice(-MOST_PAGES)).set(page, { items, round }),
          );
        },
        (error: unknown) => {
          onTheirWay.current.delete(page);
          setProblem(sentenceOf(error));
          if (latest.current !== round) setPages((before) => new Map(before));
        },
      );
    }
  }, [sessionId, from, to, round, isNone, pages]);

  return {
    of: (seq) => pages.get(Math.floor((seq - 1) / AT_ONCE))?.items[(seq - 1) % AT_ONCE],
    problem,
    reload: () => setRound((before) => before + 1),
  };
}
