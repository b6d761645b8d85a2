"""Everything that can be set, read once from HEADSTART_* variables. Nothing else looks at the environment, but
for the key with which the command line asks a server (HEADSTART_KEY)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from platformdirs import user_cache_path, user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from core.errors import SettingsInvalid

PREFIX = "HEADSTART_"
DEFAULT_MODEL = "smollm2-135m-instruct"
_CENTURY_SECONDS = 100 * 365 * 86400  # an expiry must be an instant that Python and the databases can write
_DEEPEST_JSON = 256  # what reads, checks and writes JSON is recursive


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, protected_namespaces=()
    )

    data_dir: Path = Field(
        default_factory=lambda: user_data_path("headstart"),
        description="Folder of the database, the secret file, KV files and the lock. One embedded server uses it at a time.",
    )
    model_cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("headstart") / "models",
        description="Folder for converted models. May be deleted: it is made again.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address the server listens on.")
    port: int = Field(8080, ge=0, le=65535, description="Port the server listens on; 0 takes a free one.")
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address metrics are served on. They ask for no key: let only trusted machines reach it.",
    )
    metrics_port: int = Field(
        9464, ge=0, le=65535, description="Port metrics are served on, at /metrics; 0 takes a free one."
    )

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        description="Model to serve: the name of the built-in one, a local Hugging Face folder, or a hub id (org/name).",
    )
    model_name: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="Name the model is served under. Unset: the built-in model's, the folder's or the hub id's own.",
    )
    model_aliases: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="More names for the served model, separated by commas, such as gemini-2.5-flash,gemini-2.0-flash.",
    )

    device: str = Field("auto", description="Where the engine computes: auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of weights and KV. auto: bfloat16 where native, else float16 on CUDA, float32 on CPU.",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads of the engine. Unset: one a core."
    )
    arena_bytes: int | None = Field(
        None,
        ge=1 << 20,
        description="Memory for KV, in bytes. Unset: half of what the process may use; of a GPU, nine tenths of what weights, tails and the largest step leave.",
    )
    host_bytes: int | None = Field(
        None,
        ge=0,
        description="Memory for KV beside a GPU's own, in bytes. Unset: half of what the process may use, with a GPU; without one, none.",
    )
    kv_dir: Path | None = Field(
        None,
        description="Folder in which a folder of ours is made for KV files, for one server at a time. Unset: kv in the data folder. Empty the old one when this is changed.",
    )
    kv_disk_bytes: int | None = Field(
        None,
        ge=0,
        description="Most bytes of KV files. Unset: a quarter of what is free there at start; 0: no KV is kept on disk.",
    )
    prefill_chunk_tokens: int = Field(
        256, ge=1, description="Most prompt tokens computed in one engine step."
    )
    max_running_requests: int = Field(32, ge=1, description="Most requests that generate at once.")
    max_waiting_requests: int = Field(
        256, ge=0, description="Most requests that wait for the engine; more get 503."
    )
    tail_tokens: int = Field(512, ge=1, description="Tokens of private KV set aside for a request at first.")

    automatic_reuse: bool = Field(
        True,
        description="Whether requests read KV that earlier ones of their project left behind, and leave theirs.",
    )

    min_cache_tokens: int = Field(64, ge=1, description="Smallest cache, in tokens.")
    default_ttl_seconds: int = Field(
        3600, ge=1, description="Life of a cache created without an expiry, in seconds."
    )
    max_ttl_seconds: int = Field(
        30 * 86400, ge=1, le=_CENTURY_SECONDS, description="Longest life of a cache from now on, in seconds."
    )
    max_caches_per_project: int = Field(1000, ge=0, description="Most live caches of one project.")
    max_cached_tokens_per_project: int | None = Field(
        None,
        ge=0,
        description="Most tokens in a project's live caches of one model. Unset: what caches may hold of the slowest tier is the limit.",
    )
    max_body_bytes: int = Field(32 << 20, ge=1, description="Largest request body, in bytes.")
    max_json_depth: int = Field(64, ge=8, le=_DEEPEST_JSON, description="Deepest nesting of a request body.")

    price_book: Path | None = Field(
        None,
        description="Price book (TOML), loaded at each start. Unset: the prices that are stored; a new database begins with the example.",
    )
    database_url: SecretStr | None = Field(
        None,
        description="PostgreSQL database, as postgresql://user:password@host:port/name. Unset: SQLite in the data folder.",
    )
    database_pool_size: int = Field(8, ge=1, description="Most database steps that run at once.")
    sweep_interval_seconds: float = Field(
        5, gt=0, le=60, description="How often content of expired caches is removed, in seconds."
    )
    bookkeeping_interval_seconds: float = Field(
        60, gt=0, le=3600, description="Seconds between two postings of storage. No bill depends on it."
    )
    verify_interval_seconds: float = Field(
        3600,
        gt=0,
        le=_CENTURY_SECONDS,
        description="Seconds between two reconciliations of the last two days' bills.",
    )
    # Reconciliation takes what runs for longer for lost.
    request_timeout_seconds: float = Field(
        600, gt=0, le=86400, description="Longest time a request may take, in seconds; a day at most."
    )
    keep_alive_seconds: float = Field(
        15, gt=0, description="How long a stream may be silent before a blank line is sent, in seconds."
    )
    rebuild_caches: bool = Field(
        False,
        description="Rebuild live caches whose model has new weights but the same tokenizer and template.",
    )
    retire_caches: bool = Field(False, description="End live caches that were made with another model.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )

    @field_validator("data_dir", "model_cache_dir", "kv_dir", "price_book", mode="before")
    @classmethod
    def _check_not_empty(cls, value: object) -> object:
        """An empty path would be the folder that the command happens to be called in."""
        if value == "":
            raise ValueError("it is empty: unset it, or name a path")
        return value

    @field_validator("data_dir", "model_cache_dir", "kv_dir", "price_book")
    @classmethod
    def _expand_home(cls, value: Path | None) -> Path | None:
        return None if value is None else _expanded(value)

    @field_validator("model")
    @classmethod
    def _check_home(cls, value: str) -> str:
        _expanded(Path(value))
        return value

    @field_validator("model_aliases", mode="before")
    @classmethod
    def _split_aliases(cls, value: object) -> object:
        return (
            tuple(name.strip() for name in value.split(",") if name.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("model_aliases")
    @classmethod
    def _check_aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name or name.startswith(("models/", "/")) or name != name.strip():
                raise ValueError(f"{name!r} is no model name: write it without 'models/' and without spaces")
        return value

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.default_ttl_seconds > self.max_ttl_seconds:
            raise ValueError(
                "default_ttl_seconds is more than max_ttl_seconds: lower the first or raise the second"
            )
        if self.rebuild_caches and self.retire_caches:
            raise ValueError("rebuild_caches and retire_caches exclude each other: set one of them")
        return self


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"{path.parts[0]} is no user's home: write the path from its root") from None


def load_settings(**overrides: Any) -> Settings:
    """Read the settings, `overrides` first; raise SettingsInvalid that names every wrong one."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsInvalid(
            "\n".join(
                _complaint(str(each["loc"][0]) if each["loc"] else None, each["msg"])
                for each in error.errors()
            ),
            field=next((str(each["loc"][0]) for each in error.errors() if each["loc"]), None),
        ) from None  # its text repeats the values


def _complaint(field: str | None, message: str) -> str:
    if field is None or field not in Settings.model_fields:
        return f"{field}: {message}" if field else message
    return f"{PREFIX}{field.upper()}: {message}. {Settings.model_fields[field].description}"
