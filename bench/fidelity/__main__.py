"""`python -m bench.fidelity DATA`: see `docs/fidelity.md`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from app.engine.policy.policy import PRESETS
from app.tokenizers.counters import Tokenizers
from bench.fidelity.engine_rule import EngineRule, local_vectors
from bench.fidelity.kept import measure_kept
from bench.fidelity.look_back import measure_look_backs
from bench.fidelity.measure import measure
from bench.fidelity.plot import write_plot
from bench.fidelity.recorded import Conversation, read_conversations
from bench.fidelity.rows import ENCODING, Row, measure_file
from bench.fidelity.rules import drawn_rules, rules
from bench.fidelity.updates import AROUND, measure_updates
from bench.fidelity.values import measure_values

RESULTS = Path(__file__).parents[1] / "results"
BUDGETS = (1024, 2048, 4096, 8192, 16384)
TOOL_BUDGET = 2048
_WIDTH_CHARS = 120


def main() -> None:
    arguments = _arguments()
    console = Console(width=_WIDTH_CHARS)
    files = sorted(path for path in arguments.data.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    runs = [
        (rule, path, budget, form)
        for path in files
        for asks in [_has_questions(path)]
        for form in ("", *_forms(arguments, asks=asks))
        for budget in (arguments.budgets if asks or form else [arguments.tool_budget])
        for rule in arguments.rules
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = track(pool.map(measure_file, runs), "replaying", total=len(runs), console=console, transient=True)
        rows = list(found)
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        console.print(_table(dataset, [row for row in rows if row["dataset"] == dataset]))
    console.print(f"[dim]{_write_json(rows)}[/]")
    if arguments.updates:
        _print_updates(console, [path for path in files if _has_questions(path)], arguments.budgets)
    if arguments.look_back:
        _print_look_backs(console, files, arguments.budgets, arguments.tool_budget)
    if arguments.embeddings:
        _print_embeddings(console, [path for path in files if _has_questions(path)], arguments.budgets)
    if arguments.kept:
        _print_kept(console, files, arguments.budgets)
    if arguments.plot:
        drawn = [row for row in rows if row["questions"] and row["rule"] in drawn_rules()]
        write_plot(arguments.plot, _panels(drawn))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description="What keeps answers in the prompt.")
    parser.add_argument("data", type=Path, help="folder with conversations as JSON lines (.jsonl or .jsonl.gz)")
    parser.add_argument("--budgets", type=_numbers, default=BUDGETS, help="input budgets in tokens")
    parser.add_argument("--tool-budget", type=int, default=TOOL_BUDGET, help="budget of files without questions")
    parser.add_argument("--rules", type=lambda text: text.split(";"), default=list(rules()), help="names, by semicolon")
    parser.add_argument("--long-replies", action="store_true", help="also with every message answered by 450 tokens")
    parser.add_argument("--one-loop", action="store_true", help="also with all tool rounds of a file as one turn")
    parser.add_argument("--updates", action="store_true", help="also with facts that are stated and corrected")
    parser.add_argument("--look-back", action="store_true", help="also with a model that looks back")
    parser.add_argument("--embeddings", action="store_true", help="also recalls by meaning (the extra `embeddings`)")
    parser.add_argument("--kept", action="store_true", help="also with demands and values that are to outlive folds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="an SVG to write")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _forms(arguments: argparse.Namespace, *, asks: bool) -> list[str]:
    """In which other forms a file is replayed."""
    if asks:
        return ["long replies"] if arguments.long_replies else []
    return ["one loop"] if arguments.one_loop else []


def _conversations(path: Path) -> list[Conversation]:
    return read_conversations(path, Tokenizers().estimator(ENCODING))


def _has_questions(path: Path) -> bool:
    return any(conversation.questions for conversation in _conversations(path))


def _table(dataset: str, rows: Sequence[Row]) -> Table:
    table = Table(title=dataset, box=SIMPLE_HEAD, pad_edge=False)
    headers = ("budget", "rule", "EV", "ANS", "over", "refused", "broken", "sent/turn", "eff/turn", "cacheable")
    headers += ("recalled", "… asked")
    for header in headers:
        table.add_column(header, justify="left" if header == "rule" else "right")
    for row in rows:
        asked = row["questions"] > 0
        table.add_row(
            f"{row['input_budget']:,}",
            row["rule"],
            f"{row['ev']:.3f}" if asked else "–",
            f"{row['ans']:.3f}" if asked else "–",
            str(row["prompts_over_budget"]),
            str(row["prompts_refused"]),
            f"{row['violation_share']:.1%}",
            f"{row['sent_tokens_per_turn']:,}",
            f"{row['eff_tokens_per_turn']:,}",
            f"{row['cacheable_share']:.0%}",
            f"{row['recalled_tokens_per_prompt']:,}",
            f"{row['recalled_tokens_per_question']:,}" if asked else "–",
        )
    return table


def _print_updates(console: Console, files: Sequence[Path], budgets: Sequence[int]) -> None:
    estimate = Tokenizers().estimator(ENCODING)
    for path, budget, around in product(files, budgets, ("", AROUND)):
        rule = EngineRule(PRESETS["guarded"].policy, budget, estimate)
        found = measure_updates(rule, _conversations(path), estimate, around)
        form = "long" if around else "short"
        console.print(
            f"{path.name} at {budget:,}, {form} corrections: newest statement present {found.newest_share:.1%} of "
            f"{found.planted}, behind the older {found.in_order_share:.1%}"
        )


def _print_look_backs(console: Console, files: Sequence[Path], budgets: Sequence[int], tool_budget: int) -> None:
    estimate = Tokenizers().estimator(ENCODING)
    guarded = PRESETS["guarded"].policy
    for path, budget in ((path, budget) for path in files if _has_questions(path) for budget in budgets):
        found = measure_look_backs(EngineRule(guarded, budget, estimate), _conversations(path), budget, estimate)
        console.print(
            f"{path.name} at {budget:,}: EV after 0, 1, 2 look-backs {_shares(found.ev)}, in the turn "
            f"{_shares(found.ev_of_turn)}; {found.page_tokens:,} tokens of pages and {found.sent_tokens:,} sent a "
            f"question, {found.over_budget} over, {found.broken} broken"
        )
    for path in (path for path in files if not _has_questions(path)):
        rule = EngineRule(guarded, tool_budget, estimate)
        reached = measure_values(rule, _conversations(path), tool_budget, estimate)
        console.print(
            f"{path.name} at {tool_budget:,}: of {reached.sampled} values {reached.in_prompt:.1%} in the prompt, "
            f"{reached.after_one:.1%} after one look-back, {reached.after_two:.1%} after two; {reached.page_tokens:,} "
            f"tokens of pages a value, {reached.over_budget} over, {reached.broken} broken"
        )


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _print_embeddings(console: Console, files: Sequence[Path], budgets: Sequence[int]) -> None:
    estimate, vector_of = Tokenizers().estimator(ENCODING), local_vectors()
    for path, budget in product(files, budgets):
        rule = EngineRule(PRESETS["guarded"].policy, budget, estimate, vector_of)
        found = measure(rule, _conversations(path), budget, estimate).figures()
        console.print(
            f"{path.name} at {budget:,} with the local embedding model: EV {found['ev']:.3f}, "
            f"{found['recalled_tokens_per_prompt']:,} tokens recalled a prompt and "
            f"{found['recalled_tokens_per_question']:,} a question, {found['prompts_over_budget']} over"
        )


def _print_kept(console: Console, files: Sequence[Path], budgets: Sequence[int]) -> None:
    estimate = Tokenizers().estimator(ENCODING)
    for path, budget in product(files, budgets):
        found = measure_kept(EngineRule(PRESETS["guarded"].policy, budget, estimate), _conversations(path), estimate)
        console.print(
            f"{path.name} at {budget:,}: {found.kept_share:.1%} of {found.planted} planted demands and values stand in "
            f"the prompt after {found.folds} folds, {found.reached_share:.1%} there or one look-back away"
        )


def _panels(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, float]]]:
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        panels.setdefault(row["dataset"], {}).setdefault(row["rule"], {})[row["input_budget"]] = row["ev"]
    return panels


def _write_json(rows: Sequence[Row]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"fidelity-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    return path


if __name__ == "__main__":
    main()
