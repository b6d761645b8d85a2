"""Gone means gone: words that stand nowhere else are cached, and within a minute after the end no file and no log has them."""

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from models.cache import CacheState, find_prefix
from tests.e2e.customer import MODEL, Customer, document, greedy, user
from tests.e2e.home import KV_SUFFIXES, Home, kv_token_ids
from tests.e2e.moments import never_remove_kv_files
from tests.e2e.processes import Server, wait_until

MINUTE = 60
_WINDOW = 8  # token ids; in fewer, other texts may agree


@dataclass
class Canary:
    """Text, with words that stand in no other; `sent` has each of them once."""

    sent: list[str] = field(default_factory=list)

    def word(self) -> str:
        self.sent.append(f"Kanarie{secrets.token_hex(8)}é漢")
        return self.sent[-1]

    def text(self, repeats: int) -> str:
        """Long enough that a database spreads it over pages."""
        word = self.word()
        return " ".join(f"{word} number {index}," for index in range(repeats))

    def forms(self) -> list[bytes]:
        """As text and as JSON may hold it, and in part, since a database cuts what is long."""
        parts = {part for word in self.sent for part in (word, word.rstrip("é漢"), json.dumps(word)[1:-1])}
        return [part.encode() for part in parts]


def packed_ids(home: Home, name: str) -> bytes:
    """The cache's token ids as the database packs them, and a KV file too."""
    with home.books.database.read() as session:
        prefix = find_prefix(session, name.removeprefix("cachedContents/"))
    assert prefix is not None
    return b"".join(each.to_bytes(4, "little") for each in prefix.token_ids)


def token_windows(home: Home, name: str, *, but: str) -> list[bytes]:
    """The cache's token ids, a few at a time; not those that another one has too."""
    packed, others = packed_ids(home, name), packed_ids(home, but)
    windows = [packed[at : at + 4 * _WINDOW] for at in range(0, len(packed), 4 * _WINDOW)]
    return [each for each in windows[:-1] if each not in others]


def cache_body(canary: Canary, **more: Any) -> dict[str, Any]:
    return {
        "model": f"models/{MODEL}",
        "displayName": canary.word(),
        "systemInstruction": user(canary.text(5)),
        "contents": [
            user(canary.text(40)),
            {"role": "model", "parts": [{"text": canary.text(5)}]},
            user(canary.word()),
        ],
        **more,
    }


def create(customer: Customer, canary: Canary, **more: Any) -> str:
    answer = customer.http.post(
        "/v1beta/cachedContents",
        json=cache_body(canary, **more),
        headers={"idempotency-key": canary.word()[:-2]},
    )
    assert answer.status_code == 200, answer.text
    name: str = answer.json()["name"]
    return name


def ask_about(customer: Customer, name: str, canary: Canary) -> None:
    for _ in range(2):
        customer.ask(canary.text(10), name)
    with customer.stream(canary.text(10), name, 30) as chunks:
        next(chunks)


def provoke(customer: Customer, canary: Canary) -> None:
    """Everything that is refused or fails, and might be quoted somewhere."""
    word = canary.word
    create_route, ask_route = "/v1beta/cachedContents", customer.path("generateContent")
    answers = [
        customer.http.post(create_route, json=cache_body(canary, ttl=word())),
        customer.http.post(create_route, json=cache_body(canary, **{word(): 1})),
        customer.http.post(create_route, json={**cache_body(canary), "model": word()}),
        customer.http.post(create_route, content=f'{{"contents": "{word()}"'.encode()),
        customer.http.post(create_route, json=customer.cache_body(document(4000, word()))),  # no room
        customer.http.post(create_route, json={**cache_body(canary), "contents": [user(canary.text(5000))]}),
        customer.http.post(ask_route, json={"contents": [{"role": word(), "parts": [{"text": word()}]}]}),
        customer.http.post(
            ask_route, json={"contents": [user(word())], "generationConfig": {"seed": word()}}
        ),
        customer.http.get(f"/v1beta/cachedContents/{secrets.token_hex(8)}"),
    ]
    assert {answer.status_code for answer in answers} == {400, 403, 404, 429}
    with customer.begun(create_route, cache_body(canary, contents=[user(canary.text(100))])):
        pass


@contextmanager
def busy(customer: Customer) -> Iterator[None]:
    """Somebody else reads and writes all the time: nothing waits for a quiet moment."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            customer.http.post(
                customer.path("generateContent"),
                json={"contents": [user("Who waits?")], "generationConfig": greedy(2)},
            )
            customer.names()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        customer.close()


def kv_files(home: Home, forms: list[bytes]) -> set[str]:
    """Names of KV files that hold any of it."""
    return {name for name in home.traces(*forms) if Path(name).suffix in KV_SUFFIXES}


def conversations(home: Home, name: str) -> list[bytes]:
    """Token ids in the KV files that begin where the whole blocks of a cache end: what it was asked and answered."""
    cached, contents = (
        packed_ids(home, name),
        [path.read_bytes() for path in (home.data_dir / "kv").glob("*.kv")],
    )
    own = [content for content in contents if kv_token_ids(content) in cached]
    ends = {key_of(content, "key") for content in own}
    return [
        kv_token_ids(content)
        for content in contents
        if content not in own and key_of(content, "parent") in ends
    ]


def key_of(content: bytes, field_name: str) -> bytes:
    found = re.search(rb'"%s":"([0-9a-f]{64})"' % field_name.encode(), content)
    assert found is not None
    return found[1]


def delete(customer: Customer, name: str) -> None:
    customer.delete(name)


def expire(customer: Customer, name: str) -> None:
    customer.patch(name, ttl="0.5s")


def logged(server: Server, canary: Canary) -> list[bytes]:
    """What of it stands in all that the server has written about itself."""
    written = server.log_path.read_bytes() + server.log_path.with_suffix(".out").read_bytes()
    return [form for form in canary.forms() if form in written]


@pytest.mark.parametrize("level", ["info", pytest.param("debug", marks=pytest.mark.long)])
def test_no_file_and_no_log_has_what_has_ended(home: Home, level: str) -> None:
    server = home.start(automatic_reuse=True, log_level=level, prefill_chunk_tokens=256)
    customer = home.customer(server)
    kept, refused = Canary(), Canary()
    kept_name = create(customer, kept)
    with busy(Customer(server.address, home.project_key)):
        for end in (delete, expire):
            canary = Canary()
            name = create(customer, canary)
            ask_about(customer, name, canary)
            windows = token_windows(home, name, but=kept_name)
            assert len(windows) > 50
            assert home.traces(*windows[5:6])
            assert home.traces(canary.sent[0].encode()), "its display name"
            wait_until(lambda windows=windows: kv_files(home, windows), "its KV is written")  # type: ignore[misc]
            end(customer, name)
            assert_gone(home, [*canary.forms(), *windows])
            assert logged(server, canary) == []
        provoke(customer, refused)
        wait_until(
            lambda: all(
                row.state is not CacheState.PENDING for row in home.books.caches(customer.project_id)
            ),
            "what was refused has ended",
        )
        assert_gone(home, refused.forms())
    assert logged(server, refused) == logged(server, kept) == []
    assert home.traces(packed_ids(home, kept_name)[:200])
    assert server.terminate() == 0
    assert home.traces(kept.sent[1].encode())


def assert_gone(home: Home, forms: list[bytes]) -> None:
    wait_until(lambda: not home.traces(*forms), "it is gone from disk", MINUTE)


@pytest.mark.long
@pytest.mark.parametrize("end", [delete, expire])
def test_nor_has_a_start_after_a_kill_in_that_very_moment(
    home: Home, end: Callable[[Customer, str], None]
) -> None:
    home.before_start = never_remove_kv_files
    server = home.start(sweep_interval_seconds=60)
    customer, canary = home.customer(server), Canary()
    kept_name, name = create(customer, Canary()), create(customer, canary)
    windows = token_windows(home, name, but=kept_name)
    forms = [*canary.forms(), *windows]
    wait_until(lambda: kv_files(home, windows), "its KV is written")
    end(customer, name)
    server.kill()
    home.before_start = None
    assert kv_files(home, windows), "nobody had time to wipe it"
    again = home.start()
    assert_gone(home, forms)
    assert logged(again, canary) == []
    assert again.terminate() == 0


@pytest.mark.parametrize("end", [delete, expire])
def test_what_was_asked_of_it_is_gone_from_its_files_too(
    home: Home, end: Callable[[Customer, str], None]
) -> None:
    """Automatic KV that was built upon a cache, and was written because the arena filled up."""
    server = home.start(automatic_reuse=True, prefill_chunk_tokens=256, kv_disk_bytes=64 << 20)
    customer, canary = home.customer(server), Canary()
    kept_name, name = create(customer, Canary()), create(customer, canary)
    ask_about(customer, name, canary)
    for number in range(5):
        customer.ask("What fills memory?", None, document(1500, f"filler {number}"), tokens=1)
    wait_until(lambda: conversations(home, name), "it is written")
    spoken = conversations(home, name)
    others = packed_ids(home, kept_name)  # with numbers and commas between its words, too
    cut = [each[at : at + 4 * _WINDOW] for each in spoken for at in range(0, len(each), 4 * _WINDOW)]
    windows = [each for each in cut if each not in others]
    assert len(windows) > 20
    of_cache = token_windows(home, name, but=kept_name)
    assert kv_files(home, windows)
    end(customer, name)
    assert_gone(home, [*windows, *of_cache])
    assert logged(server, canary) == []
    assert server.terminate() == 0
