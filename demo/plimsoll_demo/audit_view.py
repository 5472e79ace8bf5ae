"""Shows one turn's audit and one refusal so that a person can follow the arithmetic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from plimsoll_demo.figures import PRUNE_RATIO
from plimsoll_demo.render import SUMMARY_RATIO

SHOWN_ACTIONS = 8
PANEL_WIDTH = 100
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{8}([0-9a-f]{4})")
"""An id; its last four digits tell the ids of one session apart."""


def audit_panel(audit: Mapping[str, Any], *, turn_number: int) -> RenderableType:
    """The budget arithmetic of an audit row and its trim log, `SHOWN_ACTIONS` rows of it."""
    log = cast("Mapping[str, Any]", audit.get("context_trim_log") or {})
    actions = cast("Sequence[Mapping[str, Any]]", log.get("actions") or ())
    parts: list[RenderableType] = [_arithmetic(audit)]
    if actions:
        parts.append(_actions_table(actions))
    if sha256 := audit.get("prompt_sha256"):
        parts.append(Text.assemble(("prompt_sha256 ", "dim"), str(sha256)))
    title = f"turn {turn_number}: GET …/turns/{{id}}/audit"
    return Panel(Group(*parts), title=title, title_align="left", width=PANEL_WIDTH, border_style="#7c3aed")


def refusal_panel(status_code: int, problem: Mapping[str, Any]) -> RenderableType:
    """A problem+json as it was answered: sentence, arithmetic, the largest items and what to do."""
    text = Text()
    text.append(f"{status_code} {problem.get('code', '')}", "bold #ef4444")
    text.append(f"\n{problem.get('detail', problem.get('title', ''))}\n")
    parts: list[RenderableType] = [text, _members(problem)]
    return Panel(
        Group(*parts),
        title="a message that cannot fit: POST …/turns",
        title_align="left",
        width=PANEL_WIDTH,
        border_style="#ef4444",
    )


def _arithmetic(audit: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    budget_tokens = int(audit["input_budget"])
    before_tokens = int(audit["estimated_input_tokens_before"])
    folded_tokens = int(audit["estimated_input_tokens_after_summary"])
    pruned_tokens = int(audit["estimated_input_tokens_after_prune"])
    source = audit.get("context_limit_source", "")
    table.add_row(
        "window of the model", _figure(audit["model_context_limit"]), f"{audit['model_alias']}, from: {source}"
    )
    table.add_row("− reserved for output", _figure(audit["output_reserve"]), "")
    table.add_row(
        "− reserved for overhead", _figure(audit["overhead_reserve"]), "pays for framing and tool definitions"
    )
    table.add_row("= input budget", _figure(budget_tokens), "")
    summarize_at, prune_at = round(budget_tokens * SUMMARY_RATIO), round(budget_tokens * PRUNE_RATIO)
    summarized = "summarized" if audit["summary_triggered"] else "no summary was due"
    pruned = "pruned" if audit["prune_triggered"] else "nothing pruned"
    table.add_row("counted as it came", _figure(before_tokens), f"summary at {summarize_at:,} (70 %) or after 8 turns")
    table.add_row("after the summary step", _figure(folded_tokens), f"{summarized}; prune at {prune_at:,} (90 %)")
    table.add_row(
        "after the prune step", _figure(pruned_tokens), f"{pruned}; {pruned_tokens / budget_tokens:.0%} of the budget"
    )
    if audit.get("actual_prompt_tokens") is not None:
        wire_tokens, actual_tokens = audit["estimated_wire_tokens"], audit["actual_prompt_tokens"]
        table.add_row("on the wire", _figure(wire_tokens), f"the provider counted {actual_tokens:,}")
    return table


def _actions_table(actions: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"context_trim_log: {len(actions)} actions",
        title_justify="left",
    )
    table.add_column("kind", no_wrap=True, style="bold")
    table.add_column("target", no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column("reason", overflow="fold")
    table.add_column("tokens removed", justify="right", no_wrap=True)
    for action in actions[:SHOWN_ACTIONS]:
        removed_tokens = _figure(action["tokens_removed_est"])
        table.add_row(str(action["kind"]), _one_line(action["target"]), str(action["reason"]), removed_tokens)
    rest = actions[SHOWN_ACTIONS:]
    if rest:
        removed_tokens = sum(int(action["tokens_removed_est"]) for action in rest)
        table.add_row("…", "", f"and {len(rest)} more", f"{removed_tokens:,}", style="dim")
    return table


def _members(problem: Mapping[str, Any]) -> Table:
    """The problem's own members beside their names, zeros left out, an entry of a list on its own line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for member in ("budget", "regions", "largest_items", "recovery"):
        value: object = problem.get(member)
        entries = cast("list[object]", value) if isinstance(value, list) else [value]
        lines = [_one_line(entry) for entry in entries if entry]
        if lines:
            table.add_row(member, "\n".join(lines))
    return table


def _one_line(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value).items()
        return ", ".join(f"{name} {_one_line(member)}" for name, member in members if member != 0)
    if isinstance(value, list):
        return "; ".join(_one_line(entry) for entry in cast("list[object]", value))
    return _UUID.sub(r"…\1", str(value))


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
