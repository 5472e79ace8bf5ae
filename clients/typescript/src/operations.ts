/** Every operation of the service that is one request and one JSON answer, and the types of the methods it becomes. */

import type { paths } from "./schema.ts";
import type { CallOptions } from "./types.ts";

type Path = keyof paths;
type Verb<P extends Path> = ("get" | "post" | "put" | "patch" | "delete") & keyof paths[P];
type JsonOf<T> = T extends { content: { "application/json": infer J } } ? J : never;

/** What an operation takes beside its address. */
type Takes<O> = O extends { requestBody?: infer B; parameters: { query?: infer Q } }
  ? [JsonOf<B>] extends [never]
    ? [Q] extends [undefined]
      ? "nothing"
      : "query"
    : "body"
  : never;

/** A request as the OpenAPI document has it; `repeatable` states that sending it again is no second one. */
export interface Operation<P extends Path = Path, M extends string = string> {
  readonly method: M;
  readonly path: P;
  readonly takes: "body" | "query" | "nothing";
  readonly repeatable: boolean;
}

export function operation<P extends Path, M extends Verb<P>>(
  method: M,
  path: P,
  takes: Takes<paths[P][M]>,
  repeatable = false,
): Operation<P, M> {
  return { method, path, takes, repeatable: repeatable || ["get", "put", "delete"].includes(method) };
}

const REPEATABLE = true;

export const OPERATIONS = {
  /** Creates a session. All fields are optional. */
  createSession: operation("post", "/v1/sessions", "body"),
  /** One page of the sessions, newest first unless `order` is `asc`. A page of a search (`q`) may be short, or empty, and still go on. */
  listSessions: operation("get", "/v1/sessions", "query"),
  /** One session, with its tokens and cost so far. */
  getSession: operation("get", "/v1/sessions/{session_id}", "nothing"),
  /** Sets the given fields: null removes a value; `policy`, `metadata` and `limits` are replaced whole. */
  changeSession: operation("patch", "/v1/sessions/{session_id}", "body", REPEATABLE),
  /** Permanently deletes the session with everything in it. */
  deleteSession: operation("delete", "/v1/sessions/{session_id}", "nothing"),
  /** Creates a new session with the same history, through the given turn or the last one that has ended. */
  forkSession: operation("post", "/v1/sessions/{session_id}/fork", "body"),
  /** The whole session as one JSON document, for `importSession`. */
  exportSession: operation("get", "/v1/sessions/{session_id}/export", "nothing"),
  /** One page of the session's turns from number `from_seq` on, oldest first unless `order` is `desc`. */
  listTurns: operation("get", "/v1/sessions/{session_id}/turns", "query"),
  /** One turn. */
  getTurn: operation("get", "/v1/sessions/{session_id}/turns/{turn_id}", "nothing"),
  /** Creates a session from existing messages in OpenAI's form, with the fields of a new session: completely or not at all. */
  importMessages: operation("post", "/v1/sessions/import", "body"),
  /** Ends a turn that runs or waits for tools. Its message is kept. */
  cancelTurn: operation("post", "/v1/sessions/{session_id}/turns/{turn_id}/cancel", "nothing"),
  /** Runs the session's last turn again in a fork that ends before it, with the given fields changed. */
  regenerateTurn: operation("post", "/v1/sessions/{session_id}/turns/{turn_id}/regenerate", "body"),
  /** How the turn's prompt was built, in the last tool round or in `round`. */
  getAudit: operation("get", "/v1/sessions/{session_id}/turns/{turn_id}/audit", "query"),
  /** The exact messages and tools that were sent, in the last tool round or in `round`. */
  getPrompt: operation("get", "/v1/sessions/{session_id}/turns/{turn_id}/prompt", "query"),
  /** The window now: tokens by region, budget, limit and its source, turns to the next summary. */
  getContext: operation("get", "/v1/sessions/{session_id}/context", "nothing"),
  /** The prompt that the next turn would send. Calls no language model; writes only an embedding model's usage. */
  previewTurn: operation("post", "/v1/sessions/{session_id}/context/preview", "body", REPEATABLE),
  /** One page of the window turn by turn, newest first unless `order` is `asc`. */
  getTimeline: operation("get", "/v1/sessions/{session_id}/timeline", "query"),
  /** The timeline, or a part of it, oldest first, in at most `points` ranges of turns, each with its largest prompt. */
  getOverview: operation("get", "/v1/sessions/{session_id}/timeline/overview", "query"),
  /** One page of the session's messages, oldest first unless `order` is `desc`; or those of `ids`, separated by commas. */
  listMessages: operation("get", "/v1/sessions/{session_id}/messages", "query"),
  /** The session's messages that match the words of `q`, best first. */
  searchSession: operation("get", "/v1/sessions/{session_id}/search", "query"),
  /** Stored messages as a model reads them back: those that match `q`, or the one with the `handle` page by page. */
  lookBack: operation("get", "/v1/sessions/{session_id}/look-back", "query"),
  /** One page of the messages of all sessions that have all the words of `q`. It may be short, or empty, and still go on. */
  searchMessages: operation("get", "/v1/search", "query"),
  /** One page of the session's summaries, newest first unless `order` is `asc`, active and past. */
  listSummaries: operation("get", "/v1/sessions/{session_id}/summaries", "query"),
  /** Summarizes now what can be summarized, regardless of thresholds; `focus` is kept in most detail. */
  summarizeNow: operation("post", "/v1/sessions/{session_id}/summaries", "body"),
  /** Makes a person's version of the active summary the active one. A list that is given replaces the whole list. */
  editSummary: operation("patch", "/v1/sessions/{session_id}/summaries/{summary_id}", "body"),
  /** Withdraws whichever summary is active now, also one that was made meanwhile. */
  undoActiveSummary: operation("post", "/v1/sessions/{session_id}/summaries/active/undo", "nothing"),
  /** Withdraws the active summary: the previous one becomes active again. */
  undoSummary: operation("post", "/v1/sessions/{session_id}/summaries/{summary_id}/undo", "nothing"),
  /** One page of the session's pins, by name. */
  listPins: operation("get", "/v1/sessions/{session_id}/pins", "query"),
  /** Adds content to every prompt of the session, or replaces the pin of this name. */
  putPin: operation("put", "/v1/sessions/{session_id}/pins/{name}", "body"),
  /** One pin. */
  getPin: operation("get", "/v1/sessions/{session_id}/pins/{name}", "nothing"),
  /** Removes the pin. */
  deletePin: operation("delete", "/v1/sessions/{session_id}/pins/{name}", "nothing"),
  /** Computes the session's turns under other policies and models. Calls no model and writes nothing. */
  simulate: operation("post", "/v1/sessions/{session_id}/simulate", "body", REPEATABLE),
  /** The tenant's open turns, of all sessions. */
  listOpenTurns: operation("get", "/v1/events", "nothing"),
  /** The presets with all their values, and each field with its range and meaning. */
  getPolicies: operation("get", "/v1/policies", "nothing"),
  /** The aliases: window and its source, prices where known. */
  getModels: operation("get", "/v1/models", "nothing"),
  /** One alias, as OpenAI lists a model. */
  getModel: operation("get", "/v1/models/{alias}", "nothing"),
  /** The service's name, version and addresses. */
  getRoot: operation("get", "/", "nothing"),
  /** Whether the process serves. */
  getHealth: operation("get", "/healthz", "nothing"),
  /** Whether the database answers and has this version's schema; also where it does not. */
  getReadiness: operation("get", "/readyz", "nothing"),
};

/** Lists page by page, each with the operation that answers a page. */
export const ITERATORS = {
  iterateSessions: "listSessions",
  iterateTurns: "listTurns",
  iterateTimeline: "getTimeline",
  iterateMessages: "listMessages",
  iterateFoundMessages: "searchMessages",
  iterateSummaries: "listSummaries",
  iteratePins: "listPins",
} as const;

/** What an operation answers: the JSON of its success, nothing where that has no body. */
type Answer<O> = O extends { responses: infer R }
  ? [JsonOf<R[keyof R & (200 | 201)]>] extends [never]
    ? void
    : JsonOf<R[keyof R & (200 | 201)]>
  : never;

type Places<P> = P extends `${string}{${string}}${string}{${string}}${string}`
  ? [sessionId: string, id: string]
  : P extends `${string}{${string}}${string}`
    ? [id: string]
    : [];

/** The body or the query of an operation. It may be left out where the document says so. */
type Input<O> = {
  nothing: [];
  body: O extends { requestBody: infer B }
    ? [body: JsonOf<B>]
    : O extends { requestBody?: infer B }
      ? [body?: JsonOf<B>]
      : [];
  query: O extends { parameters: { query: infer Q } }
    ? [query: Q]
    : O extends { parameters: { query?: infer Q } }
      ? [query?: Q]
      : [];
}[Takes<O>];

type MethodOf<O> =
  O extends Operation<infer P, infer M>
    ? M extends keyof paths[P]
      ? (...given: [...Places<P>, ...Input<paths[P][M]>, options?: CallOptions]) => Promise<Answer<paths[P][M]>>
      : never
    : never;

export type Methods = { [N in keyof typeof OPERATIONS]: MethodOf<(typeof OPERATIONS)[N]> };

type IteratorOf<F> = F extends (...given: infer G) => Promise<{ items: (infer T)[] }>
  ? (...given: G) => AsyncGenerator<T, void, undefined>
  : never;

export type Iterators = { [N in keyof typeof ITERATORS]: IteratorOf<Methods[(typeof ITERATORS)[N]]> };
