"""A month of ledger entries, made by the server itself: a month of a busy server would take a month."""

import time
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.ledger.owners import add_owners
from bench.ledger.shape import KEYS, MODEL, MONTH, SECONDS, Shape
from models.session import Database

Tick = Callable[[str], None]
STEPS = 6
# The facts of the last day are there as well, so that it can be verified.
FACTS_FROM = SECONDS - 24 * 3600
_PERIOD = f"{MONTH:%Y-%m}"

_REQUESTS = """
CREATE TEMP TABLE made_requests AS
SELECT 'gen_' || pg_temp.made_id('request', number) AS id, hit.cache_id, coalesce(hit.project_id, miss.project_id) AS project_id,
       coalesce(hit.key_id, miss.key_id) AS key_id, coalesce(hit.occurred, miss.occurred) AS occurred,
       coalesce(hit.tokens, 0) AS named,
       CASE WHEN pg_temp.chance(number, 12) < 0.1 THEN 64 * floor(1 + 3 * pg_temp.chance(number, 13))::int ELSE 0 END AS implicit,
       CASE WHEN is_hit THEN 200 ELSE 400 END + floor(300 * pg_temp.chance(number, 14))::int AS suffix,
       1 + floor(400 * pg_temp.chance(number, 15))::int AS output
FROM (
    -- Some caches are asked often, most seldom.
    SELECT number, pg_temp.chance(number, 10) < 0.85 AS is_hit,
           1 + floor(:caches * power(pg_temp.chance(number, 11), 3))::bigint AS cache
    FROM generate_series(1, :requests) AS number
) AS drawn
LEFT JOIN LATERAL (
    SELECT id AS cache_id, project_id, tokens, first + floor((last - first) * pg_temp.chance(drawn.number, 16))::int AS occurred,
           'key_' || pg_temp.made_id('key', project * :keys + (key + floor(2 * pg_temp.chance(drawn.number, 17))::int) % :keys)
           AS key_id
    FROM made_caches WHERE number = drawn.cache
) AS hit ON is_hit
LEFT JOIN LATERAL (
    SELECT project_id, key_id, floor(:seconds * pg_temp.chance(drawn.number, 18))::int AS occurred
    FROM made_caches WHERE number = drawn.cache
) AS miss ON NOT is_hit
"""
_ENTRIES = """
INSERT INTO ledger_entries (project_id, dedupe_key, kind, debit, credit, meter, price_id, key_id, cache_id, model, hour, period,
                            quantity, amount_nano_usd, without_cache_nano_usd, posted_at)
SELECT project_id, dedupe_key, 'USAGE', 'RECEIVABLE', 'REVENUE', meter, price_id, key_id, cache_id, :model,
       pg_temp.at(hour * 3600), :period, quantity, amount, without_cache, pg_temp.at(hour * 3600 + 3600)
FROM (
    SELECT project_id, requests.id || ':' || part.meter AS dedupe_key, part.meter, prices.id AS price_id, key_id, cache_id,
           occurred / 3600 AS hour, part.quantity, part.quantity * prices.nano_usd_per_million / 1000000 AS amount,
           part.quantity * CASE WHEN part.meter = 'output_tokens' THEN prices.nano_usd_per_million
                                ELSE input.nano_usd_per_million END / 1000000 AS without_cache
    FROM made_requests AS requests
    CROSS JOIN LATERAL (VALUES ('cache_read_tokens', named::bigint), ('implicit_cache_read_tokens', implicit),
                               ('input_tokens', suffix - implicit), ('output_tokens', output)) AS part (meter, quantity)
    JOIN priced AS prices ON prices.meter = part.meter
    CROSS JOIN (SELECT nano_usd_per_million FROM priced WHERE meter = 'input_tokens') AS input
    WHERE part.quantity > 0
    UNION ALL
    SELECT caches.project_id, 'write:' || caches.id || ':' || prices.meter, prices.meter, prices.id, key_id, caches.id,
           first / 3600, tokens, tokens::bigint * nano_usd_per_million / 1000000, 0
    FROM made_caches AS caches JOIN priced AS prices ON prices.meter = 'cache_write_tokens'
    UNION ALL
    SELECT project_id, 'storage:' || caches_id || ':' || price_id || ':' || extract(epoch FROM pg_temp.at(begin))::bigint,
           'cache_storage_token_seconds', price_id, key_id, caches_id, begin / 3600, tokens::bigint * (until - begin),
           (div(tokens::numeric * (until - first) * nano_usd_per_million, 3600000000)
            - div(tokens::numeric * (begin - first) * nano_usd_per_million, 3600000000))::bigint, 0
    FROM (
        SELECT caches.project_id, caches.id AS caches_id, prices.id AS price_id, key_id, tokens, first, nano_usd_per_million,
               greatest(first, hour * 3600) AS begin, least(last, hour * 3600 + 3600) AS until
        FROM made_caches AS caches
        JOIN priced AS prices ON prices.meter = 'cache_storage_token_seconds'
        CROSS JOIN LATERAL generate_series(first / 3600, (last - 1) / 3600) AS hour
    ) AS hours
) AS charges
ORDER BY hour
"""
_USAGE = """
INSERT INTO usage (id, kind, project_id, key_id, cache_id, model, state, attempt, incarnation, prompt_tokens, input_tokens,
                   cache_read_tokens, implicit_cache_tokens, cache_write_tokens, output_tokens, created_at, occurred_at,
                   end_reason, is_posted)
SELECT id, 'GENERATE', project_id, key_id, cache_id, :model, 'FINAL', 1, 'inc', named + suffix, suffix - implicit,
       named + implicit, implicit, 0, output, pg_temp.at(occurred), pg_temp.at(occurred), 'STOP', TRUE
FROM made_requests WHERE occurred >= :since
UNION ALL
SELECT 'write:' || id, 'CREATE', project_id, key_id, id, :model, 'FINAL', 1, 'inc', 0, 0, 0, 0, tokens, 0, pg_temp.at(first),
       pg_temp.at(first), NULL, TRUE
FROM made_caches WHERE first >= :since
"""
_PRICED = (
    "CREATE TEMP VIEW priced AS SELECT id, meter, nano_usd_per_million FROM prices WHERE effective_to IS NULL"
)
# Keys of other tables, and what is looked up by: checked and built at once when all rows are there.
_SLOW = """
SELECT 'ALTER TABLE ledger_entries DROP CONSTRAINT ' || conname,
       'ALTER TABLE ledger_entries ADD CONSTRAINT ' || conname || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint
WHERE conrelid = 'ledger_entries'::regclass AND (contype = 'f' OR conname = 'uq_ledger_entries_project_id_dedupe_key')
UNION ALL
SELECT 'DROP INDEX ' || indexname, indexdef FROM pg_indexes
WHERE tablename = 'ledger_entries' AND indexname LIKE 'ix_%'
"""


def fill(database: Database, shape: Shape, tick: Tick) -> float:
    """Make the month in an empty database; gives the seconds that took."""
    started = time.perf_counter()
    with database.write() as session:
        session.execute(text("SET LOCAL maintenance_work_mem = '512MB'"))
        session.execute(text("SET LOCAL work_mem = '256MB'"))
        tick("projects and caches")
        add_owners(session, shape.caches)
        session.execute(text(_PRICED))
        session.execute(
            text("INSERT INTO billing_periods (month, state) VALUES (:month, 'OPEN')"), {"month": _PERIOD}
        )
        session.execute(text("CREATE INDEX ON made_caches (number)"))
        session.execute(text("ANALYZE made_caches"))
        slow = session.execute(text(_SLOW)).all()
        tick("requests")
        _run(session, _REQUESTS, caches=shape.caches, requests=shape.requests, keys=KEYS, seconds=SECONDS)
        tick("entries")
        for drop, _ in slow:
            session.execute(text(drop))
        _run(session, _ENTRIES, model=MODEL, period=_PERIOD)
        tick("indexes and keys")
        for _, make in sorted(slow, key=lambda pair: "FOREIGN KEY" in pair[1]):
            session.execute(text(make))
        tick("usage of the last day")
        _run(session, _USAGE, model=MODEL, since=FACTS_FROM)
    tick("statistics")
    with database.write() as session:
        session.execute(text("ANALYZE"))
    return time.perf_counter() - started


def _run(session: Session, statement: str, **values: object) -> None:
    session.execute(text(statement), values)
