"""The quote that docs/api.md shows is what its request is answered."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from billing.price import ANY
from billing.price_book import load_price_book
from billing.quote import Plan, quote
from billing.quote_json import quote_json
from billing.timelines import Prices

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
START = datetime(2026, 11, 30, tzinfo=UTC)


def shown(pattern: str) -> dict[str, Any]:
    (block,) = re.findall(pattern, PAGE, re.DOTALL)
    found: dict[str, Any] = json.loads(block)
    return found


def test_the_example_is_right() -> None:
    asked = shown(r"billing/quote -d '(\{.*?\})'")
    plan = Plan(
        project_id=ANY,
        model=asked["model"],
        token_count=asked["tokenCount"],
        start=START,
        end=START + timedelta(seconds=int(asked["ttl"].removesuffix("s"))),
        hits=asked["expectedHits"],
        suffix_tokens=asked["suffixTokens"],
        output_tokens=asked["outputTokens"],
    )
    made = quote_json(quote(plan, Prices(load_price_book(None).prices)))
    answered = shown(r"```json\n(\{.*?breakEvenHits.*?\})\n```")
    assert answered == {name: made[name] for name in answered}
    assert made.keys() - answered.keys() - {"provisionalNanoUsd"} == {
        "project",
        "start",
        "end",
        "hitRate",
        "meters",
    }
