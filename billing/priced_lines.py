"""The charges of a period by meter, model and price: what a report sums up, with the price that each part of it had."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from billing.meters import Meter
from billing.periods import Period
from billing.price import Price
from billing.prices import list_prices
from billing.report import unposted_storage
from models.ledger_month import sum_by_price


@dataclass(frozen=True, slots=True)
class PricedLine:
    """What was consumed of one meter of one model at one price, and what that comes to.

    model: the one it was consumed of; the price may be that of all models.
    """

    meter: Meter
    model: str
    price: Price
    quantity: int
    amount_nano_usd: int


def priced_lines(session: Session, project_id: str, period: Period, now: datetime) -> list[PricedLine]:
    """List what a project consumed in the hours that start in a period, storage that is not posted yet included.

    In the order of Meter, then by model, then by when the price began. What corrections took back whole is left out.
    """
    sums: dict[tuple[Meter, str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))

    def add(meter: Meter, model: str, price_id: int, quantity: int, amount_nano_usd: int) -> None:
        so_far = sums[meter, model, price_id]
        sums[meter, model, price_id] = so_far[0] + quantity, so_far[1] + amount_nano_usd

    for row in sum_by_price(session, project_id, period.start, period.end):
        add(Meter(row["meter"]), row["model"], row["price_id"], row["quantity"], row["amount_nano_usd"])
    for charge in unposted_storage(session, period, project_id, now):
        add(charge.meter, charge.model, charge.price_id, charge.quantity, charge.amount_nano_usd)
    prices = {price.id: price for price in list_prices(session)}
    lines = [
        PricedLine(meter, model, prices[price_id], *figures)
        for (meter, model, price_id), figures in sums.items()
        if figures != (0, 0)
    ]
    order = [*Meter]
    return sorted(lines, key=lambda line: (order.index(line.meter), line.model, line.price.effective_from))
