"""From settings to the model on offer: where it lies, that it can be served, and what it is called. No torch yet."""

from pathlib import Path

from core.settings import Settings
from prompting.format import PromptFormat
from prompting.served_model import ServedModel
from workers.engine.loading.digests import DigestCache
from workers.engine.loading.fingerprint import fingerprint
from workers.engine.loading.gate import check, check_vocabulary
from workers.engine.loading.progress import Progress
from workers.engine.loading.source import model_folder, served_name


def load_served_model(settings: Settings, progress: Progress) -> tuple[Path, ServedModel]:
    """Find the model's folder, convert or download it where needed, refuse what cannot be served.

    Raises ModelBroken, ModelUnsupported or ModelTooLarge.
    """
    folder = model_folder(settings, progress)
    facts = check(folder)
    prompt_format = PromptFormat.load(folder)
    check_vocabulary(facts, prompt_format.vocabulary_size)
    digests = DigestCache(settings.model_cache_dir / "digests.json")
    name = served_name(settings)
    return folder, ServedModel(
        name=name,
        aliases=settings.model_aliases,
        display_name=name,
        description=f"{facts.layers} layers, {facts.context_tokens} tokens of context, served by Headstart.",
        context_tokens=facts.context_tokens,
        input_token_limit=facts.context_tokens - 1,
        output_token_limit=facts.context_tokens - 1,
        min_cache_tokens=settings.min_cache_tokens,
        fingerprint=fingerprint(folder, prompt_format, digests=digests, progress=progress),
        format=prompt_format,
    )
