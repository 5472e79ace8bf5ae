import type { ProblemBody } from "../api";
import { plural, tokens } from "../format";
import { addressOf } from "../router";
import type { Region, Regions } from "../types";
import { REGION_NAMES, Swatch } from "../window/regions";

interface Item {
  item: string;
  region: Region;
  tokens: number;
}

/** The members of a `context_budget_exceeded`. */
interface OverBudget extends ProblemBody {
  budget: { limit: number; input_budget: number; estimated: number; over_by: number };
  regions: Regions;
  largest_items: Item[];
  recovery: { shorten: { item: string; region: Region; by_tokens: number }[]; or?: string };
}

export function isOverBudget(problem: ProblemBody): problem is OverBudget {
  return problem.code === "context_budget_exceeded" && typeof problem.budget === "object";
}

/** What `recovery.or` says where a new session has room for the turn. */
const AFRESH = "start a new session";

interface Recovery {
  sessionId: string;
  /** Leads to the message. */
  onShorten: () => void;
  /** Starts a session with the same settings, and takes what was typed along. */
  onStartAfresh: () => void;
}

interface Props {
  problem: ProblemBody;
  /** Where something can be done about it. */
  recovery?: Recovery;
}

/** A turn that does not fit: what it would have needed, what is largest in it, and what to shorten. */
export function Refusal({ problem, recovery: help }: Props) {
  if (!isOverBudget(problem)) return <p class="notice">{problem.detail}</p>;
  const { budget, largest_items: largest, recovery } = problem;
  const shorten = new Map(recovery.shorten.map((row) => [row.item, row.by_tokens]));
  const messages = recovery.shorten.filter((row) => row.region === "user");
  return (
    <div class="refusal">
      <p>
        <strong>Over the budget by {plural(budget.over_by, "token")}.</strong> It needs {tokens(budget.estimated)} after
        everything that may be dropped was dropped; the input budget is {tokens(budget.input_budget)}. Nothing is sent.
      </p>
      <ul class="targets" aria-label="Largest items">
        {largest.map((row) => (
          <li key={row.item}>
            <span>
              <Swatch region={row.region} /> {REGION_NAMES[row.region]}
              {row.region === "pins" && <> {row.item.replace("pin:", "")}</>}
              {shorten.has(row.item) && (
                <span class="quiet"> · shorten by {plural(shorten.get(row.item) ?? 0, "token")}</span>
              )}
            </span>
            <span class="number">{tokens(row.tokens)}</span>
          </li>
        ))}
      </ul>
      {help && (
        <div class="buttons">
          {messages.length > 0 && (
            <button type="button" onClick={help.onShorten}>
              Shorten the message by {plural(Math.max(...messages.map((row) => row.by_tokens)), "token")}
            </button>
          )}
          {recovery.shorten.some((row) => row.region === "pins") && (
            <a class="button" href={addressOf(help.sessionId, "memory")}>
              Shorten or remove pins
            </a>
          )}
          {recovery.or === AFRESH && (
            <button type="button" onClick={help.onStartAfresh}>
              Start a new session with it
            </button>
          )}
        </div>
      )}
      {recovery.or && !(help && recovery.or === AFRESH) && <p class="small quiet">Or {recovery.or}.</p>}
    </div>
  );
}
