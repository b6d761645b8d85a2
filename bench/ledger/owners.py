"""Projects, keys, prices and caches of a generated ledger, made by the server itself."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.ledger.shape import KEYS, MODEL, MONTH, PROJECTS, SECONDS
from billing.price_book import load_price_book
from billing.prices import store

# A number from 0 on and below 1, for a row and a purpose: the same in each run.
_CHANCE = """
CREATE FUNCTION pg_temp.chance(number bigint, purpose bigint) RETURNS float8 LANGUAGE sql IMMUTABLE AS
$$ SELECT (hashint8extended(number, purpose) & 9007199254740991)::float8 / 9007199254740992 $$
"""
_IDS = """
CREATE FUNCTION pg_temp.made_id(kind text, number bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT left(md5(kind || number), 24) $$
"""
_AT = f"""
CREATE FUNCTION pg_temp.at(seconds bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS
$$ SELECT to_timestamp({int(MONTH.timestamp())} + seconds) $$
"""
_PROJECTS = """
INSERT INTO projects (id, name, created_at)
SELECT 'proj_' || pg_temp.made_id('project', number), 'project ' || number, CAST(:month AS timestamptz)
FROM generate_series(1, :projects) AS number
"""
_KEYS = """
INSERT INTO api_keys (id, project_id, name, secret_mac, scopes, created_at)
SELECT 'key_' || pg_temp.made_id('key', number), 'proj_' || pg_temp.made_id('project', 1 + number / :keys), 'key',
       sha256(number::text::bytea), 'caches generate', CAST(:month AS timestamptz)
FROM generate_series(0, :projects * :keys - 1) AS number
"""
# Some projects have many caches. Most live for the hour that is the default, some for days.
_MADE_CACHES = """
CREATE TEMP TABLE made_caches AS
SELECT number, id, project, 'proj_' || pg_temp.made_id('project', project + 1) AS project_id, key,
       'key_' || pg_temp.made_id('key', project * :keys + key) AS key_id, tokens, first,
       least(first + life, :seconds - 600) AS last
FROM (
    SELECT number, pg_temp.made_id('cache', number) AS id,
           floor(:projects * power(pg_temp.chance(number, 1), 2))::int AS project,
           floor(:keys * pg_temp.chance(number, 2))::int AS key,
           1000 + floor(60000 * power(pg_temp.chance(number, 3), 2))::int AS tokens,
           floor((:seconds - 7200) * pg_temp.chance(number, 4))::int AS first,
           CASE WHEN pg_temp.chance(number, 5) < 0.6 THEN 3600
                WHEN pg_temp.chance(number, 5) < 0.9 THEN 3600 + floor(14 * 3600 * pg_temp.chance(number, 6))::int
                ELSE 3600 + floor(300 * 3600 * pg_temp.chance(number, 6))::int END AS life
    FROM generate_series(1, :caches) AS number
) AS drawn
"""
_CACHES = """
INSERT INTO caches (id, project_id, key_id, model, fingerprint, display_name, state, token_count, incarnation, fencing_token,
                    created_at, updated_at, expire_at, activated_at, ended_at, end_reason)
SELECT id, project_id, key_id, :model, 'a:b', '', 'EXPIRED', tokens, 'inc', 1, pg_temp.at(first), pg_temp.at(last), pg_temp.at(last), pg_temp.at(first),
       pg_temp.at(last), 'EXPIRED'
FROM made_caches
"""
_SEGMENTS = """
INSERT INTO storage_segments (cache_id, project_id, key_id, model, token_count, started_at, ends_at, accrued_until)
SELECT id, project_id, key_id, :model, tokens, pg_temp.at(first), pg_temp.at(last), pg_temp.at(last) FROM made_caches
"""


def add_owners(session: Session, caches: int) -> None:
    """Projects and keys, the example's prices, and so many caches whose lives are over and posted, with their segments.

    `made_caches` stays for the session, with seconds from the beginning of the month on.
    """
    values = {
        "month": MONTH,
        "projects": PROJECTS,
        "keys": KEYS,
        "seconds": SECONDS,
        "caches": caches,
        "model": MODEL,
    }
    for statement in (_CHANCE, _IDS, _AT, _PROJECTS, _KEYS, _MADE_CACHES, _CACHES, _SEGMENTS):
        used = {name: value for name, value in values.items() if f":{name}" in statement}
        session.execute(text(statement), used)
    store(session, load_price_book(None), MONTH)
