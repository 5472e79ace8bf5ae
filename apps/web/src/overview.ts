// The turns of a session as points of a plot: each for itself, or runs of them with their largest.
import { call, type Page } from "./api";
import { type Resource, useResource } from "./resource";
import type { TimelineRange, TimelineTurn, Turn } from "./types";

/** Of turns `first` through `last` at most `points` runs. `version` changes when something of them may have. */
export function useOverview(
  sessionId: string,
  first: number,
  last: number,
  points: number,
  version: number,
): Resource<TimelineRange[]> {
  return useResource(
    async (signal) => {
      if (last < first || points < 1) return [];
      const query = { from_seq: first, through_seq: last, points };
      return (await call<Page<TimelineRange>>(`sessions/${sessionId}/timeline/overview`, { query, signal })).items;
    },
    [sessionId, first, last, points],
    version,
  );
}

/** One turn by its number, or by its id; null where there is none. */
export function useTurn(
  sessionId: string,
  turn: string | number | null,
  version: number,
): Resource<TimelineTurn | null> {
  return useResource(
    async (signal) => {
      const seq = turn === null ? null : isNumber(turn) ? Number(turn) : await numberOf(sessionId, turn, signal);
      if (seq === null) return null;
      const query = { from_seq: seq, through_seq: seq };
      const page = await call<Page<TimelineRange>>(`sessions/${sessionId}/timeline/overview`, { query, signal });
      return page.items[0]?.peak ?? null;
    },
    [sessionId, turn],
    version,
  );
}

async function numberOf(sessionId: string, turnId: string | number, signal: AbortSignal): Promise<number> {
  return (await call<Turn>(`sessions/${sessionId}/turns/${turnId}`, { signal })).seq;
}

function isNumber(turn: string | number): boolean {
  return /^[1-9]\d{0,11}$/.test(String(turn));
}
