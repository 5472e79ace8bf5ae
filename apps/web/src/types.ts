// The API's answers, as far as the page reads them. The OpenAPI document at /openapi.json describes them in full.
import type { ProblemBody } from "./api";

export const REGIONS = ["system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing"] as const;
export type Region = (typeof REGIONS)[number];

export type TurnState = "running" | "awaiting_tools" | "completed" | "failed" | "rejected" | "cancelled";

export interface WindowFigures {
  turn_id: string;
  model_alias: string;
  model_context_limit: number;
  input_budget: number;
  estimated_input_tokens: number;
  estimated_wire_tokens: number;
}

export interface Figures {
  turns: number;
  state: TurnState | null;
  first_input: string | null;
  last_turn_id: string | null;
  last_turn_at: string | null;
  window: WindowFigures | null;
  prompt_tokens: number;
  completion_tokens: number;
  cost_usd: number | null;
}

export interface Session {
  id: string;
  model_alias: string;
  mode: string | null;
  agent_role: string | null;
  room_goal: string | null;
  instructions: string | null;
  policy: Record<string, unknown>;
  metadata: Record<string, unknown>;
  created_at: string;
  updated_at: string;
  forked_from: { session_id: string; turn_id: string | null } | null;
  figures?: Figures | null;
}

export interface Model {
  alias: string;
  provider: string;
  model: string;
  is_language_model: boolean;
  context_window: number;
  context_window_source: string;
}

export interface ModelList {
  default: string;
  items: Model[];
}

export type Regions = Record<Region, number>;

export interface TimelineWindow {
  model_alias: string;
  model_context_limit: number;
  input_budget: number;
  output_reserve: number;
  overhead_reserve: number;
  estimated_input_tokens_before: number;
  estimated_input_tokens_after_summary: number;
  estimated_input_tokens_after_prune: number;
  estimated_wire_tokens: number;
  calibration_ratio: number;
  regions: Regions;
  summary_trigger_tokens: number | null;
  prune_trigger_tokens: number | null;
  prompt_sha256: string | null;
}

export type EventKind = "summary" | "later_summary" | "prune" | "recall" | "overflow" | "emergency";

export interface TimelineEvent {
  kind: EventKind;
  tokens?: number | null;
  count?: number | null;
  summary_id?: string | null;
  origin?: string | null;
  status?: string | null;
}

export interface TimelineTurn {
  turn_id: string;
  seq: number;
  status: TurnState;
  model_alias: string;
  user_input: string;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cost_usd: number | null;
  created_at: string;
  completed_at: string | null;
  rounds: number;
  attempts: number;
  window: TimelineWindow | null;
  events: TimelineEvent[];
}

/** Turns `first_seq` through `last_seq` as one point of a plot, with their largest prompt. */
export interface TimelineRange {
  first_seq: number;
  last_seq: number;
  events: Record<EventKind | "failed", number>;
  peak: TimelineTurn;
}

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

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

export interface LaidOut {
  region: Region | null;
  tokens: number;
  message_id: string | null;
  turn_id: string | null;
  turn_seq: number | null;
  shortened: boolean;
}

export interface Prompt {
  messages: PromptMessage[];
  tools: unknown[];
  layout: LaidOut[];
  prompt_sha256?: string;
}

export interface TrimAction {
  kind: string;
  target: string;
  reason: string;
  tokens_removed_est: number;
  /** Of a range: how many single actions it stands for. */
  count?: number;
}

export interface TrimLog {
  max_context_tokens: number;
  estimated_tokens_before: number;
  estimated_tokens_after: number;
  actions: TrimAction[];
  recalled?: Recalled[];
  /** Messages that the model read back in this turn, and their tokens. */
  looked_back?: { messages: number; tokens: number };
}

/**
 * Why a message was found, as far as the service says it: `matched` are the words that it has of those that were looked
 * for, `related` words that it has instead of others; `similarity` is how near its meaning is, 0 to 1, where it is near.
 */
export interface Reasons {
  matched?: string[];
  related?: { word: string; of: string }[];
  similarity?: number | null;
}

/** An older message that came back. */
export interface Recalled extends Reasons {
  message_id: string;
  score: number;
  tokens: number;
}

export interface Audit {
  turn_id: string;
  round: number;
  attempt: number;
  model_alias: string;
  model_context_limit: number;
  context_limit_source: string;
  input_budget: number;
  output_reserve: number;
  overhead_reserve: number;
  estimator: string;
  calibration_ratio: number;
  estimated_input_tokens_before: number;
  estimated_input_tokens_after_summary: number;
  estimated_input_tokens_after_prune: number;
  estimated_wire_tokens: number;
  actual_prompt_tokens: number | null;
  overflow_rejected: boolean;
  regions: Regions;
  context_trim_log: TrimLog;
  prompt_sha256: string | null;
}

export interface Turn {
  id: string;
  session_id: string;
  seq: number;
  status: TurnState;
  user_input: string;
  assistant_output: string | null;
  tool_calls: ToolCall[];
  /** The problem that the turn ended with, as the request got it. */
  error: ProblemBody | null;
  model_alias: string;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cost_usd: number | null;
  idempotency_key: string | null;
  created_at: string;
  completed_at: string | null;
}

/** A turn of a list: who posted its message, where that has a name, and when it was said, by default when it was posted. */
export interface ListedTurn extends Turn {
  name: string | null;
  said_at: string;
}

export interface StoredMessage {
  id: string;
  turn_id: string;
  turn_seq: number;
  seq: number;
  role: "user" | "assistant" | "tool";
  name: string | null;
  said_at: string;
  content: Content;
  tool_calls: ToolCall[] | null;
  tool_call_id: string | null;
  token_estimate: number;
}

/** `context` of a turn's answer. */
export interface Context {
  model_alias: string;
  model_context_limit: number;
  input_budget: number;
  overhead_reserve: number;
  estimated_input_tokens_before: number;
  estimated_input_tokens_after_summary: number;
  estimated_input_tokens_after_prune: number;
  estimated_wire_tokens: number;
  summary_triggered: boolean;
  prune_triggered: boolean;
  overflow_rejected: boolean;
  regions: Regions;
  context_trim_log: TrimLog;
  prompt_sha256: string | null;
}

/** `GET …/context`. */
export interface WindowNow {
  model_alias: string;
  model_context_limit: number;
  input_budget: number;
  overhead_reserve: number;
  estimated_input_tokens: number;
  estimated_wire_tokens: number;
  regions: Regions;
  raw_turns: number;
  active_summary_id: string | null;
  turns_to_next_summary: number | null;
  summary_trigger_tokens: number | null;
  prune_trigger_tokens: number;
}

export interface SummaryItem {
  text: string;
  message_ids: string[];
  /** The summarizer left it out and the service added it, so that it lasts. */
  kept?: boolean;
}

export interface Summary {
  id: string;
  from_message_id: string;
  to_message_id: string;
  previous_summary_id: string | null;
  summary_text: string;
  key_facts: SummaryItem[];
  open_questions: SummaryItem[];
  decisions: SummaryItem[];
  action_items: SummaryItem[];
  status: "active" | "superseded" | "undone";
  origin: "model" | "fallback" | "emergency" | "person";
  model_alias: string;
  token_estimate: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  created_by_turn_id: string | null;
  created_at: string;
}

export interface Pin {
  name: string;
  content: string;
  relevance: number | null;
  source: string | null;
  figures?: Reasons & { tokens: number; relevance: number; relevance_from: "given" | "computed" };
}

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

export interface PolicyField {
  name: string;
  takes: string;
  value_schema: ValueSchema;
  meaning: string;
  defaults: Record<string, unknown>;
}

export interface PolicyList {
  default: string;
  presets: { name: string; description: string; policy: Record<string, unknown> }[];
  fields: PolicyField[];
}

export interface Preview extends Prompt {
  seq: number;
  open_turn_id: string | null;
  summary_pending: boolean;
  context: Context;
  estimated_prompt_cost_usd: number | null;
  refusal: ProblemBody | null;
}

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
export interface FoundMessage extends Reasons {
  session_id: string;
  message_id: string;
  turn_seq: number;
  role: string;
  name: string | null;
  said_at: string;
  excerpt: string;
}
