"""A quote as JSON values, wherever it is shown: its sums are named as those of a report."""

from typing import Any

from billing.break_even import rounded
from billing.price import ANY
from billing.quote import Quote
from billing.rating import seconds_between, whole_second
from billing.report_json import sums_json
from core.clock import format_instant


def quote_json(made: Quote) -> dict[str, Any]:
    """seconds: of storage that is billed. What no number of hits reaches is None."""
    plan = made.plan
    return {
        "project": None if plan.project_id == ANY else plan.project_id,
        "model": plan.model,
        "tokenCount": plan.token_count,
        "start": format_instant(plan.start),
        "end": format_instant(plan.end),
        "seconds": seconds_between(whole_second(plan.start), whole_second(plan.end)),
        "suffixTokens": plan.suffix_tokens,
        "outputTokens": plan.output_tokens,
        **sums_json(made.sums),
        "breakEvenHits": made.hits_to_pay,
        "breakEvenHitsPerHour": rounded(made.hits_per_hour_to_keep),
    }
