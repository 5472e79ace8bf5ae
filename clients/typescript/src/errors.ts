/**
 * Every error that the client throws on purpose: a `PlimsollError`. A refusal of the service is a `Problem`, with a
 * class for each code that programs branch on; the others go by their status.
 */

import type { Schemas } from "./types.ts";

/** Tokens: `estimated` against `input_budget`, and by how many it is over. */
export interface BudgetFigures {
  limit: number;
  input_budget: number;
  estimated: number;
  over_by: number;
}

/** Something large in a prompt that was refused. */
export interface LargeItem {
  item: string;
  region: string;
  tokens: number;
}

/** What to shorten by how many tokens, so that the turn fits. */
export interface Shortening {
  item: string;
  region: string;
  by_tokens: number;
}

/** The limit that a turn would have exceeded. `resets_at` is null where time does not help. */
export interface LimitFigures {
  scope: string;
  name: string;
  value: number;
  used: number;
  reserved: number;
  asked: number;
  resets_at: string | null;
}

/** A place of a request, and what is wrong there. */
export interface Fault {
  where: string;
  message: string;
}

/** Base of all. */
export class PlimsollError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** No answer came, after the retries. `maybeDone` is false when the request surely did not reach the service. */
export class Unreachable extends PlimsollError {
  readonly maybeDone: boolean;

  constructor(detail: string, maybeDone: boolean) {
    super(detail);
    this.maybeDone = maybeDone;
  }
}

/** The service may still do what was asked. `deadlineS` is what the call had, retries included. */
export class DeadlinePassed extends PlimsollError {
  readonly deadlineS: number;

  constructor(deadlineS: number) {
    super(`No answer within ${deadlineS} s.`);
    this.deadlineS = deadlineS;
  }
}

/** The turn may still run, and is stored when it ends: read it by its ids. `text` is what had come of its answer. */
export class StreamBroken extends PlimsollError {
  readonly sessionId: string | null;
  readonly turnId: string | null;
  readonly text: string;

  constructor(detail: string, sessionId: string | null, turnId: string | null, text: string) {
    super(detail);
    this.sessionId = sessionId;
    this.turnId = turnId;
    this.text = text;
  }
}

/** Something answered that is not Plimsoll. What it answered is not repeated: it could be anything. */
export class UnexpectedAnswer extends PlimsollError {
  readonly status: number;

  constructor(detail: string, status: number) {
    super(`${detail} (status ${status})`);
    this.status = status;
  }
}

/** After `rounds` rounds of tools the model wanted another one. The turn was cancelled. */
export class ToolLoopTooLong extends PlimsollError {
  readonly turn: Schemas["TurnOut"];
  readonly rounds: number;

  constructor(turn: Schemas["TurnOut"], rounds: number) {
    super(`The model still called tools after ${rounds} rounds; the turn was cancelled.`);
    this.turn = turn;
    this.rounds = rounds;
  }
}

/** The service refused or failed (RFC 9457). `fields` are the members that the problem has beside the usual ones. */
export class Problem extends PlimsollError {
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly type: string;
  readonly status: number;
  readonly retryAfterS: number | null;
  readonly fields: Readonly<Record<string, unknown>>;

  constructor(status: number, document: Readonly<Record<string, unknown>>, retryAfterS: number | null = null) {
    const { code = "unknown", title = "", detail, type = "about:blank", status: _, ...fields } = document;
    const why = String(detail || title || `status ${status}`);
    super(`${status} ${code}: ${why}`);
    this.code = String(code);
    this.title = String(title);
    this.detail = why;
    this.type = String(type);
    this.status = status;
    this.retryAfterS = retryAfterS;
    this.fields = fields;
  }
}

/** No API key, an unknown one, or a revoked one. */
export class Unauthenticated extends Problem {}

/** The request can never work as it is. */
export class InvalidRequest extends Problem {
  /** Where, and what is wrong there. */
  get faults(): Fault[] {
    return listOf<Fault>(this.fields["errors"]);
  }
}

/** The same key with another body. */
export class IdempotencyKeyReused extends InvalidRequest {}

/** It does not exist, or it is another tenant's. */
export class NotFound extends Problem {}

/** The turn does not fit into the window. No model was called, and later prompts do not have it. */
export class ContextBudgetExceeded extends Problem {
  /** What there is room for, and what was sent; null in OpenAI's form. */
  get budget(): BudgetFigures | null {
    return (this.fields["budget"] as BudgetFigures | undefined) ?? null;
  }

  /** Tokens of the refused prompt by region. */
  get regions(): Partial<Schemas["Regions"]> {
    return (this.fields["regions"] as Schemas["Regions"] | undefined) ?? {};
  }

  /** What is largest in it, the largest first. */
  get largestItems(): LargeItem[] {
    return listOf<LargeItem>(this.fields["largest_items"]);
  }

  /** What to shorten by how much, so that it fits. */
  get shorten(): Shortening[] {
    const recovery = this.fields["recovery"] as { shorten?: unknown } | null | undefined;
    return listOf<Shortening>(recovery?.shorten);
  }
}

/** Not now, or not any more. */
export class Conflict extends Problem {}

/** The session already runs a turn, or waits for tools. */
export class TurnInProgress extends Conflict {}

/** The first request with this key still runs. */
export class IdempotencyInFlight extends Conflict {}

/** Somebody cancelled the turn while it ran. */
export class TurnCancelled extends Conflict {}

/** The turn has ended. */
export class TurnNotOpen extends Conflict {}

/** Only a session's last turn can be run again. */
export class TurnNotLast extends Conflict {}

/** No turn is old enough, or a summary would not be smaller. */
export class NothingToSummarize extends Conflict {}

/** Only the active summary can be withdrawn. */
export class SummaryNotActive extends Conflict {}

/** Nothing was stored or sent to the model. */
export class LimitExceeded extends Problem {
  /** Which limit; null where a proxy refused and not the service. */
  get limit(): LimitFigures | null {
    return (this.fields["limit"] as LimitFigures | undefined) ?? null;
  }
}

/** The model could not be reached, after the service's own retries. The user's message is kept. */
export class ProviderFailed extends Problem {
  /** `refused`, `overflow`, `rate_limited`, `down`, `timeout` or `error`. */
  get kind(): string | null {
    return (this.fields["kind"] as string | undefined) ?? null;
  }

  /** The provider's own HTTP status, where it gave one. */
  get providerStatus(): number | null {
    return (this.fields["provider_status"] as number | undefined) ?? null;
  }
}

/** The provider rejects the prompt as too long. */
export class ProviderOverflow extends ProviderFailed {}

/** The model did not answer in time. */
export class ProviderTimeout extends ProviderFailed {}

/** The database is away, the process is shutting down, or it is at its capacity. */
export class Unavailable extends Problem {}

/** The turn's process died or was stopped. */
export class WorkerLost extends Unavailable {}

/** A defect of the service. */
export class InternalError extends Problem {}

/** The class for each code of the service. */
export const BY_CODE: ReadonlyMap<string, typeof Problem> = new Map<string, typeof Problem>([
  ["context_budget_exceeded", ContextBudgetExceeded],
  ["context_length_exceeded", ContextBudgetExceeded], // of chat completions, as the next one
  ["rate_limit_exceeded", ProviderFailed],
  ["method_not_allowed", InvalidRequest],
  ["body_too_large", InvalidRequest],
  ["unsupported_media_type", InvalidRequest],
  ["headers_too_large", InvalidRequest],
  ["invalid_http", InvalidRequest],
  ["host_not_allowed", InvalidRequest],
  ["origin_not_allowed", InvalidRequest],
  ["idempotency_key_reused", IdempotencyKeyReused],
  ["idempotency_in_flight", IdempotencyInFlight],
  ["turn_in_progress", TurnInProgress],
  ["turn_cancelled", TurnCancelled],
  ["turn_not_open", TurnNotOpen],
  ["turn_not_last", TurnNotLast],
  ["nothing_to_summarize", NothingToSummarize],
  ["summary_not_active", SummaryNotActive],
  ["worker_lost", WorkerLost],
  ["provider_context_overflow", ProviderOverflow],
  ["request_timeout", Unavailable],
  ["tenant_busy", Unavailable],
]);

const BY_STATUS: ReadonlyMap<number, typeof Problem> = new Map<number, typeof Problem>([
  [401, Unauthenticated],
  [404, NotFound],
  [409, Conflict],
  [422, InvalidRequest],
  [429, LimitExceeded],
  [500, InternalError],
  [502, ProviderFailed],
  [503, Unavailable],
  [504, ProviderTimeout],
]);

/** The error of a problem's document. A code of a later version goes by its status. */
export function problemOf(
  status: number,
  document: Readonly<Record<string, unknown>>,
  retryAfterS: number | null = null,
): Problem {
  const kind = BY_CODE.get(String(document["code"])) ?? BY_STATUS.get(status) ?? Problem;
  return new kind(status, document, retryAfterS);
}

function listOf<T>(value: unknown): T[] {
  return Array.isArray(value) ? (value as T[]) : [];
}
