"""The demo's course: the same kind of questions without and with a cache, and a bill that is proved.

Everything is what a customer would meet: a server in a process of its own, the stock google-genai client, HTTP.
"""

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cli.demo.answers import Answer
from cli.demo.bill import DemoBill, fetch_and_prove
from cli.demo.client import DemoClient
from cli.demo.server import running_server
from cli.demo.story import Story

HANDBOOK = Path(__file__).parent.parent.parent / "examples" / "handbook.txt"
INSTRUCTION = "You answer questions about this handbook in one short sentence."
COLD_QUESTION = "When was the building a tram depot?"
QUESTIONS = (
    "What temperature does the glaze firing reach?",
    "Who is the keeper of the wood room?",
    "Who is the beekeeper?",
    "What was the number of the tram that gave the workshop its name?",
    "What is the telephone number of the front desk?",
)
CACHE_TTL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The one line that the demo ends with. prompt_tokens: of the last question, cached ones included."""

    cold_ttft_s: float
    hit_ttft_s: float
    speedup: float
    cached_tokens: int
    prompt_tokens: int
    answers: list[dict[str, str]]
    bill_nano_usd: int
    ledger_matches: bool


def run(story: Story) -> DemoResult:
    handbook = HANDBOOK.read_text(encoding="utf-8")
    start = datetime.now(UTC).replace(microsecond=0)
    with tempfile.TemporaryDirectory(prefix="headstart-demo-") as folder, ExitStack() as running:
        with story.waiting("starting a server, with a temporary data folder"):
            server = running.enter_context(running_server(Path(folder)))
        client = DemoClient(server.address, server.project_key, INSTRUCTION, handbook)
        story.introduce(server.address, client.model, len(handbook.split()))
        cold, hits, cached_tokens = ask_questions(client, story)
        bill = fetch_and_prove(server, Path(folder), start)
    story.conclude(cold.first_text_s, median_first_text_s(hits), bill)
    return summarise(cold, hits, cached_tokens, bill)


def ask_questions(client: DemoClient, story: Story) -> tuple[Answer, list[Answer], int]:
    """One question with the whole handbook in the request, then others against the cache."""
    with story.waiting("asking without a cache: all is computed"):
        cold = client.ask(COLD_QUESTION, cache=None)
    story.tell_answer(cold)
    with story.waiting("creating the cache: computed, and kept", about_seconds=cold.first_text_s):
        cache = client.create_cache(CACHE_TTL_SECONDS)
    story.tell_cache(cache.name, cache.token_count)
    hits = []
    for question in QUESTIONS:
        hits.append(client.ask(question, cache=cache))
        story.tell_answer(hits[-1])
    client.delete_cache(cache)
    return cold, hits, cache.token_count


def summarise(cold: Answer, hits: list[Answer], cached_tokens: int, bill: DemoBill) -> DemoResult:
    hit_s = median_first_text_s(hits)
    return DemoResult(
        cold_ttft_s=round(cold.first_text_s, 3),
        hit_ttft_s=round(hit_s, 3),
        speedup=round(cold.first_text_s / hit_s, 1),
        cached_tokens=cached_tokens,
        prompt_tokens=hits[-1].prompt_tokens,
        answers=[{"question": each.question, "answer": each.text} for each in [cold, *hits]],
        bill_nano_usd=bill.amount_nano_usd,
        ledger_matches=bill.matches,
    )


def median_first_text_s(answers: list[Answer]) -> float:
    return statistics.median(each.first_text_s for each in answers)
