// The API's answers, as far as the page reads them. The OpenAPI document at /openapi.json describes them in full.

export const REGIONS = ["system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing"] as const;
export type Region = (typeof REGIONS)[number];

export type TurnState = "pending" | "running" | "awaiting_tools" | "completed" | "failed" | "rejected" | "cancelled";

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
