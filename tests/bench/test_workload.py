import pytest

from bench.workload import QUESTION_TOKENS, Workload
from prompting.format import PromptFormat
from prompting.messages import Message
from tests.tiny_models import built_in_folder


@pytest.fixture(scope="module")
def prompt_format() -> PromptFormat:
    return PromptFormat.load(built_in_folder())


@pytest.mark.parametrize("tokens", [65, 1000, 1001, 1002])
def test_a_document_has_exactly_the_tokens_asked_for(prompt_format: PromptFormat, tokens: int) -> None:
    document = Workload(prompt_format).document(tokens)
    assert document.tokens == tokens
    assert len(prompt_format.encode(document.prefix_text)) == tokens


def test_no_document_begins_like_another(prompt_format: PromptFormat) -> None:
    workload = Workload(prompt_format)
    starts = [workload.document(200).text[:60] for _ in range(20)]
    assert len(set(starts)) == len(starts)


def test_two_runs_ask_the_same(prompt_format: PromptFormat) -> None:
    first, second = Workload(prompt_format), Workload(prompt_format)
    assert first.document(300) == second.document(300)
    assert [first.question() for _ in range(5)] == [second.question() for _ in range(5)]


def test_questions_are_new_each_time_and_of_one_length(prompt_format: PromptFormat) -> None:
    workload = Workload(prompt_format)
    document = workload.document(100)
    questions = [workload.question() for _ in range(500)]  # a whole run asks about 350
    assert len(set(questions)) == len(questions)
    cached = [Message("user", document.text)]
    for question in questions[:20]:
        suffix = prompt_format.suffix(document.prefix_text, cached, [Message("user", question)])
        assert len(suffix) == QUESTION_TOKENS


def test_a_prompt_is_the_prefix_and_what_a_request_adds(prompt_format: PromptFormat) -> None:
    workload = Workload(prompt_format)
    document = workload.document(100)
    prompt = workload.prompt(document, "Who sold the red lamp?")
    assert prompt.text.startswith(document.prefix_text)
    cached, new = [Message("user", document.text)], [Message("user", prompt.question)]
    expected = prompt_format.encode(document.prefix_text) + prompt_format.suffix(
        document.prefix_text, cached, new
    )
    assert prompt_format.encode(prompt.text) == expected


def test_a_pair_begins_alike_and_differs_then(prompt_format: PromptFormat) -> None:
    first, second, distinct = Workload(prompt_format).pair(300, 500)
    one, other = (prompt_format.encode(each.prefix_text) for each in (first, second))
    alike = 1000 - distinct
    assert len(one) == len(other) == first.tokens == second.tokens == 500
    assert one[:alike] == other[:alike]
    assert one[alike] != other[alike]
    assert 300 <= alike < 310
