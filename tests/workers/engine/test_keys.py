"""Keys are equal for equal beginnings of one namespace and model, and for nothing else."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
import torch
from hypothesis import given, strategies as st

from workers.engine.config import ModelShape
from workers.engine.keys import (
    BlockKey,
    block_keys,
    pack_tokens,
    piece_key,
    root_key,
    unpack_tokens,
)

SHAPE = ModelShape(layers=2, kv_heads=3, head_size=16, context_tokens=2048)
ROOT = root_key(b"salt", "words:weights", torch.float32, SHAPE)
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


def test_every_whole_block_has_a_key_and_what_is_left_over_has_none() -> None:
    tokens = list(range(64 * 3 + 10))
    assert [len(block_keys(ROOT, tokens[:count])) for count in (0, 63, 64, 127, 128, 202)] == [
        0,
        0,
        1,
        1,
        2,
        3,
    ]
    assert block_keys(ROOT, tokens) == block_keys(ROOT, tokens[: 64 * 3])


@given(IDS, st.integers(0, 3))
def test_keys_chain_so_that_a_path_can_be_continued_anywhere(tokens: list[int], blocks: int) -> None:
    whole = block_keys(ROOT, tokens)
    head = block_keys(ROOT, tokens[: blocks * 64])
    tail = block_keys([ROOT, *head][-1], tokens[len(head) * 64 :])
    assert [*head, *tail] == whole


@given(st.integers(0, 127), st.integers(0, 2**32 - 1))
def test_one_other_token_changes_its_block_and_all_after_it(place: int, other: int) -> None:
    tokens = list(range(1000, 1128))
    changed = [*tokens[:place], other, *tokens[place + 1 :]]
    equal = [a == b for a, b in zip(block_keys(ROOT, tokens), block_keys(ROOT, changed), strict=True)]
    assert equal == [True, True] if other == tokens[place] else equal == [place >= 64, False]


@pytest.mark.trap("T16")
def test_ids_that_agree_in_their_lowest_byte_never_collide() -> None:
    ids = [65, 65 + 256, 65 + 65_536, 65 + 2**24]
    assert len({block_keys(ROOT, [token] * 64)[0] for token in ids}) == len(ids)


def test_the_same_tokens_after_another_beginning_have_another_key() -> None:
    tokens = list(range(64))
    assert block_keys(ROOT, [*tokens, *tokens])[1] != block_keys(ROOT, tokens)[0]


ROOTS = {
    "the first": ROOT,
    "another namespace": root_key(b"salz", "words:weights", torch.float32, SHAPE),
    "no namespace": root_key(b"", "words:weights", torch.float32, SHAPE),
    "other weights": root_key(b"salt", "words:other", torch.float32, SHAPE),
    "no fingerprint": root_key(b"salt", "", torch.float32, SHAPE),
    "the two swapped": root_key(b"words:weights", "salt", torch.float32, SHAPE),
    "one run into the other": root_key(b"saltwords:", "weights", torch.float32, SHAPE),
    "all in the first": root_key(b"saltwords:weights", "", torch.float32, SHAPE),
    "all in the second": root_key(b"", "saltwords:weights", torch.float32, SHAPE),
    "another number format": root_key(b"salt", "words:weights", torch.float16, SHAPE),
    "more layers": root_key(b"salt", "words:weights", torch.float32, replace(SHAPE, layers=21)),
    "digits moved": root_key(b"salt", "words:weights", torch.float32, replace(SHAPE, layers=23, kv_heads=1)),
    "more heads": root_key(b"salt", "words:weights", torch.float32, replace(SHAPE, kv_heads=4)),
    "larger heads": root_key(b"salt", "words:weights", torch.float32, replace(SHAPE, head_size=32)),
    "another file format": root_key(b"salt", "words:weights", torch.float32, SHAPE, format_version=2),
    "larger blocks": root_key(b"salt", "words:weights", torch.float32, SHAPE, block_tokens=128),
}


@pytest.mark.trap("T15")
@pytest.mark.trap("T19")
def test_whatever_decides_the_kv_decides_the_root_and_no_field_passes_for_another() -> None:
    assert len(set(ROOTS.values())) == len(ROOTS)


def test_how_much_a_model_could_read_decides_nothing() -> None:
    assert root_key(b"salt", "words:weights", torch.float32, replace(SHAPE, context_tokens=1)) == ROOT


def test_a_private_piece_is_called_by_its_tokens_its_place_and_its_owner() -> None:
    after = block_keys(ROOT, list(range(64)))[0]
    names = {
        piece_key(ROOT, [1, 2], "first"),
        piece_key(after, [1, 2], "first"),
        piece_key(ROOT, [1, 3], "first"),
        piece_key(ROOT, [1], "first"),
        piece_key(ROOT, [1, 2], "second"),
        piece_key(ROOT, list(range(64)), ""),
        after,
        ROOT,
    }
    assert len(names) == 8


PROGRAM = """
import torch
from workers.engine.config import ModelShape
from workers.engine.keys import block_keys, root_key
root = root_key(b"salt", "words:weights", torch.float32, ModelShape(2, 3, 16, 2048))
print(root.hex(), *(key.hex() for key in block_keys(root, range(128))))
"""


@pytest.mark.trap("T21")
def test_keys_are_equal_in_a_process_with_another_hash_seed() -> None:
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": other_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    keys: list[BlockKey] = [ROOT, *block_keys(ROOT, range(128))]
    assert ran.stdout.split() == [key.hex() for key in keys]


def test_keys_stay_what_they_were() -> None:
    """Files of an earlier version are found by them: if this fails, KV_FORMAT_VERSION has to be raised."""
    assert ROOT.hex() == "babe2a68e3dbf0cd646488d5c369f74da35e62c09440f21e2704090da27a8078"
    assert (
        block_keys(ROOT, range(64))[0].hex()
        == "d061be5e7c4ab0a93f793bdd7a53cd01969fc72dbf91b371f6d39d13e4b46ecd"
    )


@given(IDS)
def test_packed_tokens_are_unpacked_again(tokens: list[int]) -> None:
    assert len(pack_tokens(tokens)) == 4 * len(tokens)
    assert unpack_tokens(pack_tokens(tokens)) == tuple(tokens)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_id_has_no_key(token: int) -> None:
    with pytest.raises(ValueError, match="token ids"):
        pack_tokens([token])


def test_bytes_that_end_within_an_id_are_none() -> None:
    with pytest.raises(ValueError, match="7 bytes"):
        unpack_tokens(bytes(7))


def test_keys_of_8000_tokens_are_cheap() -> None:
    tokens = random.Random(1).choices(range(50_000), k=8_000)
    durations = []
    for _ in range(5):
        started = perf_counter()
        block_keys(ROOT, tokens)
        durations.append(perf_counter() - started)
    assert min(durations) < 0.005
