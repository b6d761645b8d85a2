"""The shape of the database: bring it up to the newest migration, or refuse to work with any other."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.orm import Session

from core.errors import SchemaMismatch
from models.session import Database

_ROOT = Path(__file__).resolve().parent.parent


def upgrade(database: Database) -> None:
    """Apply every migration that is missing, all or none; SchemaMismatch if the database is newer than we are."""
    with database.write() as session:
        if _current(session) not in _known():
            raise _too_new(_current(session))
        config = _config()
        config.attributes["connection"] = session.connection()
        command.upgrade(config, "head")


def check(database: Database) -> None:
    """Raise SchemaMismatch unless the database is at our newest migration."""
    with database.read() as session:
        at = _current(session)
    if at == newest():
        return
    if at not in _known():
        raise _too_new(at)
    raise SchemaMismatch("The database lacks the newest migrations. Run: headstart migrate")


def current(database: Database) -> str | None:
    """Give the migration that the database is at; None before the first."""
    with database.read() as session:
        return _current(session)


def newest() -> str | None:
    return _script().get_current_head()


def downgrade(database: Database, revision: str) -> None:
    """Take back the migrations after `revision`, all or none; "base" takes back every one."""
    with database.write() as session:
        at = _current(session)
        if at not in _known():
            raise _too_new(at)
        passed = {script.revision for script in _script().iterate_revisions(at or "base", "base")}
        if revision not in passed | {"base"}:
            raise SchemaMismatch(
                f"The database is at migration {at or 'base'} and has not passed {revision}. "
                f"It can go back to: {', '.join([*sorted(passed), 'base'])}.",
                field="revision",
            )
        config = _config()
        config.attributes["connection"] = session.connection()
        command.downgrade(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_ROOT / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _known() -> set[str | None]:
    return {None} | {script.revision for script in _script().walk_revisions()}


def _current(session: Session) -> str | None:
    return MigrationContext.configure(session.connection()).get_current_revision()


def _too_new(revision: str | None) -> SchemaMismatch:
    return SchemaMismatch(
        f"The database is at migration {revision}, which this version does not know. "
        "Start the version that made it, or a newer one."
    )
