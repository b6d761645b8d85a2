"""What a database says of its own tables: columns, constraints and indexes, in its own words."""

import re
from collections import defaultdict

from sqlalchemy import text

from models.session import Database

_SQLITE = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_POSTGRESQL = """
SELECT table_name, concat_ws(' ', column_name, data_type, character_maximum_length, is_nullable, column_default) AS part
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT conrelid::regclass::text, concat_ws(' ', 'CONSTRAINT', conname, pg_get_constraintdef(oid))
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
"""


def described(database: Database) -> dict[str, list[str]]:
    """Every table as a sorted list of its parts, whatever their order."""
    with database.read() as session:
        if session.get_bind().dialect.name == "sqlite":
            return {row.name: _parts(row.sql) for row in session.execute(text(_SQLITE))}
        tables: dict[str, list[str]] = defaultdict(list)
        for row in session.execute(text(_POSTGRESQL)):
            tables[row.table_name].append(row.part)
    return {name: sorted(parts) for name, parts in tables.items()}


def _parts(sql: str) -> list[str]:
    """The parts of a table; an index as it is.

    SQLite writes a column that is added behind the others, on their line, and puts the name of a table that was renamed
    into quotes.
    """
    plain = re.sub(r"\s+", " ", sql.replace('"', ""))
    if not plain.startswith("CREATE TABLE"):
        return [plain]
    head, _, body = plain.partition("(")
    parts, depth = [""], 0
    for character in body.rstrip().removesuffix(")"):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return sorted([head.strip(), *(part.strip() for part in parts)])
