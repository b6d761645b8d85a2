"""Proof, before anything is served, that what is used is charged: whatever an installation, its settings or its database do to
posting, nobody is to be served unbilled without a word.
"""

import secrets
from datetime import datetime

from sqlalchemy.orm import Session

from billing import usage
from billing.meters import Meter
from core.clock import Clock, instant
from core.errors import LedgerBroken
from core.ids import new_key_id, new_request_id
from models import price
from models.api_key import ApiKey, insert_api_key
from models.ledger_entry import list_entries
from models.project import create_project
from models.session import Database

_MODEL = "self-test"
_NANO_USD_A_TOKEN = {Meter.INPUT_TOKENS: 2, Meter.IMPLICIT_CACHE_READ_TOKENS: 1, Meter.OUTPUT_TOKENS: 3}
_CHARGED = {  # tokens and nano-USD
    "input_tokens": (5, 10),
    "implicit_cache_read_tokens": (7, 7),
    "output_tokens": (11, 33),
}


def check_posting(database: Database, clock: Clock) -> None:
    """Reserve a request, settle it and read its charges in the ledger, in a unit that is taken back whole.

    Project, key and prices are its own. Raises LedgerBroken where the ledger does not hold exactly those charges.
    """
    with database.write() as session:
        found = _charged_to_a_probe(session, instant(session, clock))
        session.rollback()
    if found != _CHARGED:
        raise LedgerBroken(
            f"What is used is not charged: a request that was to put {_CHARGED} (tokens and nano-USD by meter) into the ledger "
            f"has put {found or 'nothing'} there, and was taken back. Nothing is served, since it would not be billed. Install "
            "this version anew, and remove whatever was added to the table ledger_entries, such as triggers or rules.",
            field="ledger_entries",
        )


def _charged_to_a_probe(session: Session, now: datetime) -> dict[str | None, tuple[int, int]]:
    request_id = new_request_id()
    project_id = create_project(session, f"self-test {request_id}", now).id
    key = ApiKey(
        id=new_key_id(),
        project_id=project_id,
        name=_MODEL,
        secret_mac=secrets.token_bytes(32),
        scopes=frozenset(),
        created_at=now,
    )
    insert_api_key(session, key)
    for meter, nano_usd in _NANO_USD_A_TOKEN.items():
        row = price.Price(
            project_id=project_id,
            model=_MODEL,
            meter=meter,
            nano_usd_per_million=nano_usd * 10**6,
            effective_from=now,
        )
        price.insert(session, row)
    usage.reserve(
        session,
        request_id=request_id,
        attempt=1,
        project_id=project_id,
        key_id=key.id,
        cache_id=None,
        model=_MODEL,
        incarnation=_MODEL,
        prompt_tokens=12,
        cache_read_tokens=0,
        at=now,
    )
    usage.finalise(session, request_id, 1, 11, now, "STOP", implicit_cache_tokens=7)
    session.expire_all()
    entries = list_entries(session, project_id, 0, 10)
    return {each.meter: (each.quantity, each.amount_nano_usd) for each in entries}
