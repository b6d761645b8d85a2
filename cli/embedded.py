"""The composition root of the embedded server: one process with API, engine, database and background work.

data folder → database → served model (gate, fingerprint) → engine → runtime ⇄ local transport ⇄ API
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from api.state import ApiState
from billing.price_book import load_price_book
from billing.prices import list_prices, load_book, unpriced_meters
from billing.self_test import check_posting
from caching import lifecycle
from cli.first_start import FirstKeys, create_first_keys
from cli.key_making import load_secret
from core.clock import Clock, SystemClock, instant
from core.ids import new_incarnation
from core.metrics import Metrics
from core.namespaces import Namespaces
from core.secret import RootSecret
from core.settings import Settings
from core.transport.local import LocalTransport
from models import schema
from models.opening import sole_home
from models.session import Database
from prompting.served_model import ServedModel
from workers.bookkeeper import Bookkeeper
from workers.engine.engine import Engine
from workers.engine.loading.progress import Progress
from workers.engine.loading.serve import load_served_model
from workers.engine.start import start_engine
from workers.runtime import Runtime
from workers.sweeper import Sweeper

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Embedded:
    """What `serve` needs of a server that is ready.

    engine: to be looked at; requests reach it through the transport. has_engine: whether it still answers. first_keys: made
    at the first start, to be shown once.
    """

    database: Database
    clock: Clock
    secret: RootSecret
    transport: LocalTransport
    served_model: ServedModel
    engine: Engine
    has_engine: Callable[[], bool]
    first_keys: FirstKeys | None

    def api_state(self, settings: Settings, ready: Callable[[], bool]) -> ApiState:
        """What the API's code works with, of this server."""
        return ApiState(
            settings=settings,
            database=self.database,
            clock=self.clock,
            secret=self.secret,
            transport=self.transport,
            served_model=self.served_model,
            ready=ready,
        )


@contextmanager
def embedded(settings: Settings, progress: Progress, metrics: Metrics | None = None) -> Iterator[Embedded]:
    """Start everything but the HTTP side, and stop it on leaving: what runs is cancelled and its usage recorded.

    metrics: where the server tells of itself; None: nobody reads it.
    """
    clock = SystemClock()
    with sole_home(settings, settings.database_pool_size) as home:
        database = home.database
        schema.upgrade(database)
        with database.read() as session:
            secret = load_secret(home.folder.secret_path, session)
        check_posting(database, clock)
        folder, served_model = load_served_model(settings, progress)
        transport = LocalTransport(new_incarnation())
        _prepare(database, clock, settings, served_model, transport.incarnation)
        with _running(
            settings, folder, served_model, database, clock, secret, transport, metrics or Metrics()
        ) as (engine, runtime):
            # Last, so that a start that fails does not make keys that nobody was shown.
            with database.write() as session:
                first_keys = create_first_keys(session, clock, secret)
            yield Embedded(
                database,
                clock,
                secret,
                transport,
                replace(
                    served_model,
                    kv_bytes_per_token=runtime.kv_bytes_per_token,
                    cache_token_capacity=runtime.cache_token_capacity,
                ),
                engine,
                has_engine=lambda: runtime.is_running,
                first_keys=first_keys,
            )


@contextmanager
def _running(
    settings: Settings,
    folder: Path,
    served_model: ServedModel,
    database: Database,
    clock: Clock,
    secret: RootSecret,
    transport: LocalTransport,
    metrics: Metrics,
) -> Iterator[tuple[Engine, Runtime]]:
    """Engine, runtime and sweeper; the rebuild of live caches goes on behind their back."""
    kv_folder = settings.data_dir / "kv" if settings.kv_dir is None else settings.kv_dir / "headstart-kv"
    engine = start_engine(folder, settings, served_model.fingerprint, kv_folder=kv_folder)
    engine.report_to(metrics)  # what it did to warm up is not told
    metrics.model_info.labels(
        model=served_model.name,
        fingerprint=served_model.fingerprint,
        dtype=str(engine.config.dtype).removeprefix("torch."),
        device=str(engine.config.device),
    ).set(1)
    runtime = Runtime(
        engine,
        database,
        clock,
        served_model.format,
        Namespaces(secret),
        transport.publish,
        settings.database_pool_size,
        transport.incarnation,
    )
    sweeper = Sweeper(database, clock, runtime.handle, settings.sweep_interval_seconds)
    bookkeeper = Bookkeeper(
        database, clock, metrics, settings.bookkeeping_interval_seconds, settings.verify_interval_seconds
    )
    with _stopping(runtime.stop), _stopping(sweeper.stop), _stopping(bookkeeper.stop):
        transport.connect(runtime.handle, runtime.cancel)
        sweeper.start()
        bookkeeper.start()
        count = runtime.builds.rebuild_all(served_model.fingerprint)
        if count:
            log.info("finding or rebuilding the KV of %d live caches in the background", count)
        engine.forget_unclaimed()
        yield engine, runtime


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        stop()


def _prepare(
    database: Database, clock: Clock, settings: Settings, served_model: ServedModel, incarnation: str
) -> None:
    """Before anything is served: prices in force, nothing left of dead processes, live caches fit the model."""
    book = load_price_book(settings.price_book)
    with database.write() as session:
        # The example is what a new database begins with; what is stored later comes from a book of the operator's own.
        if settings.price_book is not None or not list_prices(session):
            load_book(session, book, clock)
    with database.write() as session:
        now = instant(session, clock)
        unpriced = unpriced_meters(session, served_model.name, now)
        failed, voided = lifecycle.recover(session, clock, incarnation)
        if settings.retire_caches:
            lifecycle.retire(session, clock, served_model.fingerprint)
        if settings.rebuild_caches:
            lifecycle.rebind(session, served_model.fingerprint)
        lifecycle.check_fingerprint(session, served_model.fingerprint, now)
    if unpriced:
        log.warning(
            "%s has no price for %s: requests that count them are refused unless their project has a price of its own. "
            "`headstart billing prices load` adds them",
            served_model.name,
            ", ".join(unpriced),
        )
    if failed or voided:
        log.info(
            "after an unclean stop: %d unbuilt caches failed, %d requests were voided, unbilled",
            failed,
            voided,
        )
