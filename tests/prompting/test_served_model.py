import pytest

from prompting.format import PromptFormat
from prompting.served_model import ServedModel


@pytest.fixture
def model(built_in: PromptFormat) -> ServedModel:
    return ServedModel(
        name="smollm2-135m-instruct",
        aliases=("gemini-2.5-flash",),
        display_name="SmolLM2 135M Instruct",
        description="Small.",
        context_tokens=8192,
        input_token_limit=8191,
        output_token_limit=8192,
        min_cache_tokens=64,
        fingerprint="a:b",
        format=built_in,
    )


@pytest.mark.parametrize(
    "name",
    [
        "smollm2-135m-instruct",
        "models/smollm2-135m-instruct",
        "gemini-2.5-flash",
        "models/gemini-2.5-flash",
    ],
)
def test_is_known_by_its_name_and_its_aliases(name: str, model: ServedModel) -> None:
    assert model.resolve(name)


@pytest.mark.parametrize(
    "name", ["", "models/", "models/models/gemini-2.5-flash", "gemini-2.5-pro", "Gemini-2.5-Flash"]
)
def test_is_known_by_no_other(name: str, model: ServedModel) -> None:
    assert not model.resolve(name)
