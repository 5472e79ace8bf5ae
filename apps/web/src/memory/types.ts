// What the API tells of summaries and pins, as far as the page reads it.

export interface SummaryItem {
  text: string;
  message_ids: string[];
}

export interface Summary {
  id: string;
  from_message_id: string;
  to_message_id: string;
  previous_summary_id: string | null;
  summary_text: string;
  key_facts: SummaryItem[];
  decisions: SummaryItem[];
  open_questions: SummaryItem[];
  action_items: SummaryItem[];
  status: "active" | "superseded" | "undone";
  origin: "model" | "fallback" | "emergency";
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
}
