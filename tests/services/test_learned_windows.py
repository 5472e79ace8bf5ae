"""What a provider stated about its window counts where the catalogue does not fix one, in every process."""

from __future__ import annotations

from pathlib import Path

from app.services.learned_windows import learn, load_windows
from tests.providers.server import serving
from tests.services.service import chat, service


async def test_a_learned_window_stands_above_the_fallback_and_below_the_catalogue(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Hi.")) as server:
        models = (
            'default = "open"\n'
            f'[models.open]\nprovider = "openai"\nmodel = "nobody-knows"\nbase_url = "{server.base_url}"\n'
            f'[models.fixed]\nprovider = "openai"\nmodel = "nobody-knows"\nbase_url = "{server.base_url}"\n'
            "context_window = 16384\n"
        )
        async with (
            service(database_url, models, folder=tmp_path) as at,
            service(database_url, models, folder=tmp_path) as elsewhere,
        ):
            session = await at.session()
            first = await at.turn(session.id, "Hi")
            assert (first.context["model_context_limit"], first.context["context_limit_source"]) == (8192, "fallback")
            for alias in ("open", "fixed"):
                await learn(at.rt, alias, 4096)
            second = await at.turn(session.id, "Hi")
            assert (second.context["model_context_limit"], second.context["context_limit_source"]) == (4096, "learned")
            fixed = await at.turn(session.id, "Hi", model_alias="fixed")
            assert (fixed.context["model_context_limit"], fixed.context["context_limit_source"]) == (16384, "catalogue")
            await load_windows(elsewhere.rt)
            assert elsewhere.rt.catalogue.model("open").context_window == 4096
