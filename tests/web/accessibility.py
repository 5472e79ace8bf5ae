"""axe-core on a page as it stands: what it finds against WCAG 2.2 A and AA fails."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

from tests.docs.pages import ROOT

_AXE = ROOT / "apps" / "web" / "node_modules" / "axe-core" / "axe.min.js"
_RUN = """
async () => (await axe.run(document, {
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
})).violations.map((found) => ({
  rule: found.id,
  nodes: found.nodes.map((node) => `${node.html}: ${node.failureSummary}`),
}))
"""


async def faults(page: Page) -> list[dict[str, Any]]:
    """The rules that are broken, with the elements that break them."""
    # As a debugger would: the page's own policy lets no script in that is not its own.
    await page.evaluate(_AXE.read_text(encoding="utf-8"))
    return await page.evaluate(_RUN)
