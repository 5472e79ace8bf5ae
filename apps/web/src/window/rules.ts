import { tokens } from "../format";
import type { Context, TimelineWindow } from "../types";

/** What an audit and a preview both have of a decision. */
export type Decided = Pick<
  Context,
  | "model_context_limit"
  | "input_budget"
  | "estimated_input_tokens_before"
  | "estimated_input_tokens_after_summary"
  | "overflow_rejected"
  | "context_trim_log"
>;

export interface Rule {
  what: string;
  why: string;
}

const WHAT: Record<string, string> = {
  summary_folded: "Summarized",
  summary_shortened: "Summary shortened",
  tool_result_shortened: "Tool results shortened",
  tool_input_shortened: "Inputs of tool calls removed",
  assistant_shortened: "Assistant messages shortened",
  tool_group_dropped: "Tool calls with their results dropped",
  assistant_dropped: "Assistant messages dropped",
  turn_dropped: "Whole turns dropped",
  history_drop: "History dropped",
  pinned_trim: "Pins shortened",
  pinned_drop: "Pins dropped",
  media_marked: "Media replaced by a marker",
  emergency_drop: "Emergency cut",
};

/** What an action of the trim log did, and the rule for it, with the figures it was decided on. */
export function ruleOf(kind: string, reason: string, audit: Decided, window: TimelineWindow | null): Rule {
  return { what: WHAT[kind] ?? kind, why: whyOf(reason, audit, window) };
}

function whyOf(reason: string, audit: Decided, window: TimelineWindow | null): string {
  const before = tokens(audit.estimated_input_tokens_before);
  const afterSummary = tokens(audit.estimated_input_tokens_after_summary);
  const budget = tokens(audit.input_budget);
  const trigger = window?.summary_trigger_tokens;
  const prune = window?.prune_trigger_tokens;
  switch (reason) {
    case "threshold":
      return `Summary trigger: ${before} tokens, the threshold is ${trigger == null ? "a share of the budget" : tokens(trigger)}.`;
    case "turn_count":
      return "Summary trigger by the number of completed turns since the last summary, or the start.";
    case "usage":
      return `Summary trigger by share of the window: ${before} tokens.`;
    case "message_count":
      return "Summary trigger by number of messages in the window.";
    case "window":
      return `Messages, tools and answer would not fit into the window of ${tokens(audit.model_context_limit)} tokens.`;
    case "allocation":
      return "The region's share of the window (allocation) is used up.";
    case "lowest_priority":
      return "The prompt is over its limit: regions are trimmed by priority, the lowest first, down to their shares and then below.";
    case "low_relevance":
      return "The prompt is over its limit: pins are trimmed by relevance, the least relevant first.";
    case "requested":
      return "The summary was requested.";
    case "prune_threshold":
      return `Prune: still ${afterSummary} tokens after summarization, the threshold is ${prune == null ? "90 %" : tokens(prune)}; oldest low-signal items first.`;
    case "over_budget":
      return `Still over the input budget of ${budget} tokens: protected turns are pruned, oldest first.`;
    case "newest_result_too_large":
      return `The newest tool result alone is too large for the input budget of ${budget} tokens.`;
    case "provider_overflow":
      return "The provider rejected the prompt as too long; what was left out is not summarized.";
    default:
      return `Rule: ${reason.replaceAll("_", " ")}.`;
  }
}
