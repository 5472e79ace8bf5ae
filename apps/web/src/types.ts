// The API's answers, as far as the page reads them: the types that are generated from the OpenAPI document for the client
// (`make web`). Only what that document leaves open is written here.
import type { components } from "../../../clients/typescript/src/schema";
import type { ProblemBody } from "./api";

type Schemas = components["schemas"];

export type Regions = Schemas["Regions"];
export type Region = keyof Regions;
export const REGIONS = [
  "system",
  "goal",
  "pins",
  "summary",
  "history",
  "recall",
  "user",
  "tools",
  "framing",
] as const satisfies readonly Region[];

export type TurnState = Schemas["TurnStatus"];
export type WindowFigures = Schemas["WindowFigures"];
export type Figures = Schemas["SessionFigures"];
/** A session alone, or in a list with its figures. */
export type Session = Schemas["ListedSession"];
export type ModelList = Schemas["ModelList"];

export type TimelineWindow = Schemas["TimelineWindow"];
export type TimelineEvent = Schemas["TimelineEventOut"];
export type EventKind = TimelineEvent["kind"];
export type TimelineTurn = Schemas["TimelineTurn"];
export type TimelineRange = Schemas["TimelineRangeOut"];

export type ToolCall = Schemas["StoredCall"];
export type ContentPart = { type: string; text?: string } & Record<string, unknown>;
export type Content = string | ContentPart[] | null;

export interface PromptMessage {
  role: string;
  /** Who of several people spoke. */
  name?: string;
  content: Content;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
}

export type LaidOut = Schemas["LayoutRow"] & { region: Region | null };

/** `T` with these members in place of its own. */
type With<T, M> = Omit<T, keyof M> & M;

export type Prompt = With<
  Pick<Schemas["PromptOut"], "tools">,
  { messages: PromptMessage[]; layout: LaidOut[]; prompt_sha256?: string }
>;

export type TrimAction = Schemas["TrimActionOut"];
/** An older message that came back. */
export type Recalled = Schemas["RecalledOut"];
/**
 * Why a message was found, as far as the service says it: `matched` are the words that it has of those that were looked
 * for, `related` words that it has instead of others; `similarity` is how near its meaning is, 0 to 1, where it is near.
 */
export type Reasons = Pick<Recalled, "matched" | "related" | "similarity">;
export type Audit = Schemas["AuditOut"];
/** `error` is the problem that the turn ended with, as the request got it. */
export type Turn = With<Schemas["TurnOut"], { error: ProblemBody | null }>;
/** A turn of a list: who posted its message, where that has a name, and when it was said, by default when it was posted. */
export type ListedTurn = With<Schemas["ListedTurnOut"], { error: ProblemBody | null }>;
export type StoredMessage = With<Schemas["StoredMessageOut"], { content: Content }>;
/** `context` of a turn's answer. */
export type Context = Schemas["ContextOut"];
/** `GET …/context`. */
export type WindowNow = Schemas["WindowOut"];
export type SummaryItem = Schemas["SummaryItemOut"];
/** An item of a summary that a person changes. */
export type EditedItem = With<SummaryItem, { kept?: boolean }>;
export type Summary = Schemas["SummaryOut"];
export type Pin = Schemas["ListedPin"];

/** The part of JSON Schema that fields of a policy are described in. */
export interface ValueSchema {
  type: string | string[];
  enum?: string[];
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
  maxLength?: number;
  properties?: Record<string, ValueSchema>;
  items?: ValueSchema;
}

export type PolicyField = With<Schemas["PolicyFieldOut"], { value_schema: ValueSchema }>;
export type PolicyList = With<Schemas["PolicyList"], { fields: PolicyField[] }>;
export type Preview = With<Schemas["PreviewOut"], Prompt & { refusal: ProblemBody | null }>;

export interface SimulatedTurn {
  seq: number;
  calls: number;
  wire_tokens: number;
  input_tokens: number;
  summary: boolean;
  later_summary: boolean;
  prune: boolean;
  rejected: boolean;
}

export interface Lane {
  name: string;
  model_alias: string | null;
  calls: number;
  wire_tokens: number;
  summaries: number[];
  later_summaries: number[];
  prunes: number[];
  rejections: number[];
  output_tokens: number;
  summarizer_prompt_tokens: number;
  summarizer_completion_tokens: number;
  cost_usd: number | null;
  lost: {
    turns_folded: number | null;
    messages_folded: number | null;
    users_words_verbatim_mean?: number;
    users_words_verbatim_at_end?: number;
  };
  per_turn: SimulatedTurn[];
}

export interface Simulation {
  stored_turns: number;
  turns: number;
  truncated: boolean;
  assumed: string[];
  happened: Omit<Lane, "name" | "model_alias">;
  full_history: {
    model_alias: string | null;
    calls: number;
    wire_tokens: number;
    first_turn_over_the_window: number | null;
    cost_usd: number | null;
  }[];
  policies: Lane[];
}

/** A message that a search found, in one session or in all. */
export type FoundMessage = Schemas["FoundInSessionOut"] & Reasons;
