"""Starts that are refused, each with one message that names the remedy, and what the remedies do."""

import shutil
from pathlib import Path

from models.cache import CacheEndReason, CacheState
from tests.e2e.books import quantities
from tests.e2e.customer import document
from tests.e2e.home import Home

QUESTION = "What is left?"


def test_a_data_folder_is_used_by_one_server(home: Home) -> None:
    server = home.start()
    message = home.refused()
    for part in (str(home.data_dir), f"process {server.pid}", "HEADSTART_DATA_DIR"):
        assert part in message
    customer = home.customer(server)
    name = customer.create(document(100, "undisturbed"))["name"]
    server.kill()

    again = home.start()  # the lock of one that was killed is free
    assert home.customer(again).names() == [name]
    assert again.terminate() == 0

    secret = home.data_dir / "secret"
    kept = secret.read_bytes()
    secret.unlink()
    message = home.refused()
    assert str(secret) in message
    assert "backup" in message
    assert not secret.exists()

    secret.write_bytes(kept)
    secret.chmod(0o644)
    assert "chmod 600" in home.refused()
    secret.chmod(0o600)
    once_more = home.start()
    assert home.customer(once_more).names() == [name]
    assert once_more.terminate() == 0


def test_an_arena_that_holds_no_full_context(home: Home) -> None:
    message = home.refused(arena_bytes=1 << 20)
    assert "HEADSTART_ARENA_BYTES=1048576" in message
    assert "4096 tokens" in message


def test_caches_of_another_model(home: Home, model_folders: tuple[Path, Path], tmp_path: Path) -> None:
    server = home.start()
    customer, project_id = home.customer(server), home.books.project_id("default")
    text = document(200, "another model")
    name = customer.create(text)["name"]
    first = customer.ask(QUESTION, name)
    assert server.terminate() == 0
    writes = home.books.writes(project_id)

    new_weights = {"model": model_folders[1]}
    message = home.refused(**new_weights)
    assert "--rebuild-caches" in message
    assert "--retire-caches" in message
    rebuilding = home.start("--rebuild-caches", **new_weights)
    customer = home.customer(rebuilding)
    second = customer.ask(QUESTION, name)
    assert second.text == customer.ask(QUESTION, None, text).text != first.text
    assert second.usage["cachedContentTokenCount"] == first.usage["cachedContentTokenCount"]
    assert [row.id for row in home.books.writes(project_id)] == [row.id for row in writes]
    assert quantities(home.books.proven_bill(rebuilding.address, customer.key))["cache_write_tokens"] == sum(
        row.cache_write_tokens for row in writes
    )
    assert rebuilding.terminate() == 0

    # Rebuilt once, it is the new model's; another template asks for other tokens, so that no rebuild helps.
    assert "--rebuild-caches" in home.refused()
    other_template = {"model": with_another_template(model_folders[1], tmp_path / "other")}
    for flags in ((), ("--rebuild-caches",)):
        message = home.refused(*flags, **other_template)
        assert "--rebuild-caches" not in message
        assert "--retire-caches" in message
    assert home.books.cache(name).state is CacheState.ACTIVE

    retiring = home.start("--retire-caches", **other_template)
    customer = home.customer(retiring)
    assert customer.refusal(QUESTION, name) == (403, "CACHE_MODEL_RETIRED")
    assert customer.names() == []
    row = home.books.cache(name)
    assert (row.state, row.end_reason, row.messages) == (
        CacheState.DELETED,
        CacheEndReason.MODEL_RETIRED,
        None,
    )
    (segment,) = home.books.segments(project_id)
    assert segment.ends_at == row.ended_at
    assert segment.ends_at < row.expire_at
    home.books.proven_bill(retiring.address, home.operator_key)
    assert retiring.terminate() == 0


def with_another_template(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    with (folder / "chat_template.jinja").open("a") as template:
        template.write("{# changed #}")
    return folder
