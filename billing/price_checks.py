"""What must hold of the prices of a book together: no time without a price in between, and no price that defies sense."""

from collections.abc import Iterator, Sequence
from itertools import product

from billing.meters import READ_METERS, Meter
from billing.money import usd
from billing.price import ANY, Price, in_words
from billing.timelines import Prices, Span
from core.errors import PriceBookInvalid

DEAR_NANO_USD_PER_MILLION = 10**12  # 1,000 USD: nobody has asked as much, so it may be a slip


def check_unbroken(source: str, prices: Sequence[Price]) -> None:
    """Raise PriceBookInvalid where a meter that has a price is left without one later on, for any project or model.

    Where a project's or a model's own price ends, that of everybody takes its place.
    """
    for meter, spans in _timelines(prices):
        for index, span in enumerate(spans):
            follower = spans[index + 1] if index + 1 < len(spans) else None
            if span.end is not None and (follower is None or follower.start != span.end):
                until = "for ever" if follower is None else f"until {follower.start:%Y-%m-%dT%H:%M:%SZ}"
                raise PriceBookInvalid(
                    f"Price book {source}: the price of {in_words(span.price)} ends at {span.end:%Y-%m-%dT%H:%M:%SZ}, and "
                    f"{meter} then has none {until}. Add a price from that instant on, or leave effective_to out.",
                    field="effective_to",
                )


def check_sane(source: str, prices: Sequence[Price]) -> None:
    """Raise PriceBookInvalid where a token that is read costs more than one that is computed."""
    resolved = Prices(prices)
    for project_id, model in _payers(prices):
        inputs = resolved.timeline(project_id, model, Meter.INPUT_TOKENS)
        for meter in READ_METERS:
            reads = resolved.timeline(project_id, model, meter)
            for read, computed in product(reads, inputs):
                if _meet(read, computed) and _is_dearer(read, computed):
                    raise PriceBookInvalid(
                        f"Price book {source}: {in_words(read.price)} costs {read.price.nano_usd_per_million} nano-USD per "
                        f"million, more than input does ({computed.price.nano_usd_per_million}). A hit would cost more "
                        "than none; correct one of the two.",
                        field="nano_usd_per_million",
                    )


def doubts(prices: Sequence[Price]) -> list[str]:
    """What of a book may be meant and may be a slip, a sentence each: meters without a price, and prices that nobody asks."""
    resolved = Prices(prices)
    told = []
    for project_id, model in dict.fromkeys((price.project_id, price.model) for price in prices):
        missing = [meter for meter in Meter if not resolved.timeline(project_id, model, meter)]
        if missing:
            whose = "" if project_id == ANY else f" of project {project_id}"
            told.append(
                f'Model "{model}"{whose} has no price for {", ".join(missing)}: requests that count them are refused. Add '
                "[[price]] rows; 0 is allowed."
            )
    told += [
        f"{in_words(price)} costs {usd(price.nano_usd_per_million)} USD per million. Is that meant? 1 USD is 1000000000."
        for price in prices
        if price.nano_usd_per_million > DEAR_NANO_USD_PER_MILLION
    ]
    return told


def _timelines(prices: Sequence[Price]) -> Iterator[tuple[Meter, Sequence[Span]]]:
    resolved = Prices(prices)
    for (project_id, model), meter in product(_payers(prices), Meter):
        yield meter, resolved.timeline(project_id, model, meter)


def _payers(prices: Sequence[Price]) -> list[tuple[str, str]]:
    """Every project and model that pays otherwise than its project does for any model, and than everybody does for its model."""
    models = {price.model for price in prices} | {ANY}
    for_any_model = {price.project_id for price in prices if price.model == ANY} | {ANY}
    named = {(price.project_id, price.model) for price in prices}
    return sorted(named | set(product(for_any_model, models)))


def _meet(one: Span, other: Span) -> bool:
    return (one.end is None or other.start < one.end) and (other.end is None or one.start < other.end)


def _is_dearer(read: Span, computed: Span) -> bool:
    return read.price.nano_usd_per_million > computed.price.nano_usd_per_million
