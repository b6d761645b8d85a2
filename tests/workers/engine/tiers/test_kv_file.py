"""A KV file gives back the bytes that it was given, or nothing: cut or changed anywhere, it is rejected."""

import hashlib
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from tests.workers.engine.tiers.samples import (
    SHAPE,
    Windows,
    arena,
    kv_format,
    manifest_of,
    names,
    raw,
    sample,
)
from workers.engine import keys
from workers.engine.arena import Windows as SegmentWindows
from workers.engine.blocks import Run
from workers.engine.config import ModelShape
from workers.engine.tiers import arena_bytes, kv_file
from workers.engine.tiers.arena_bytes import ArenaBytes, HostBytes, StagedBytes
from workers.engine.tiers.errors import FileRejected, Rejection
from workers.engine.tiers.kv_file import Digest, KvFile
from workers.engine.tiers.manifest import Manifest, encode, seal

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def stored(
    folder: Path, manifest: Manifest, slabs: torch.Tensor, windows: Sequence[tuple[int, int]]
) -> KvFile:
    """Written under a staging name and renamed, as the store does."""
    folder.mkdir(exist_ok=True)
    digest = kv_file.write(folder / "staging", manifest, slabs, windows)
    path = (folder / "staging").rename(folder / kv_file.file_name(manifest, digest))
    return kv_file.inspect(path, manifest.format)


def rejection(file: KvFile) -> Rejection:
    """Why the file cannot be read any more."""
    slabs = arena(len(file.manifest.token_ids))
    with pytest.raises(FileRejected) as caught:
        kv_file.read(file, slabs, [(0, slabs.shape[3])])
    return caught.value.reason


def inspected(path: Path) -> Rejection | None:
    try:
        kv_file.inspect(path, kv_format())
    except FileRejected as rejected:
        return rejected.reason
    return None


@pytest.fixture(params=[HostBytes, StagedBytes])
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[torch.Tensor], ArenaBytes]:
    """In place, and through the buffers that a device needs: both work on a CPU."""
    monkeypatch.setattr(kv_file, "arena_bytes", request.param)
    chosen: Callable[[torch.Tensor], ArenaBytes] = request.param
    return chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "source", "target"),
    [
        (1, [(5, 6)], [(0, 1)]),
        (63, [(1, 64)], [(10, 73)]),
        (64, [(64, 128)], [(0, 30), (30, 64)]),
        (128, [(128, 192), (0, 64)], [(64, 128), (192, 256)]),
        (192, [(192, 256), (64, 128), (0, 64)], [(10, 138), (0, 10), (140, 194)]),
    ],
)
def test_what_is_read_is_what_was_written(
    tmp_path: Path,
    way: Callable[[torch.Tensor], ArenaBytes],
    dtype: torch.dtype,
    tokens: int,
    source: Windows,
    target: Windows,
) -> None:
    manifest = manifest_of(tokens, form=kv_format(dtype))
    slabs, other = arena(256, dtype=dtype), arena(256, dtype=dtype, seed=2)
    before = other.clone()
    file = stored(tmp_path, manifest, slabs, source)
    kv_file.read(file, other, target)
    assert torch.equal(raw(other, target), raw(slabs, source))
    outside = torch.ones(256, dtype=torch.bool)
    for start, stop in target:
        outside[start:stop] = False
    assert torch.equal(other[:, :, :, outside].view(torch.uint8), before[:, :, :, outside].view(torch.uint8))


@pytest.mark.parametrize("batch_bytes", [16, 40, 300, 5_000])
def test_the_size_of_a_batch_changes_nothing(
    tmp_path: Path,
    way: Callable[[torch.Tensor], ArenaBytes],
    monkeypatch: pytest.MonkeyPatch,
    batch_bytes: int,
) -> None:
    whole = stored(tmp_path, manifest_of(128), arena(128), [(0, 128)])
    monkeypatch.setattr(arena_bytes, "BATCH_BYTES", batch_bytes)
    file = stored(tmp_path / "again", manifest_of(128), arena(128), [(0, 64), (64, 128)])
    assert file.path.read_bytes() == whole.path.read_bytes()
    other = arena(128, seed=2)
    kv_file.read(file, other, [(64, 128), (0, 64)])
    assert torch.equal(raw(other, [(64, 128), (0, 64)]), raw(arena(128), [(0, 128)]))


def test_a_system_that_moves_a_few_bytes_at_a_time_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_few(call: Callable[[int, list[memoryview]], int]) -> Callable[[int, Sequence[memoryview]], int]:
        return lambda descriptor, buffers: call(descriptor, [buffers[0][:7]])

    monkeypatch.setattr(os, "writev", a_few(os.writev))
    monkeypatch.setattr(os, "readv", a_few(os.readv))
    given_sample = sample(64)
    file = stored(tmp_path, given_sample.manifest, given_sample.slabs, given_sample.windows)
    other = arena(64, seed=2)
    kv_file.read(file, other, [(0, 64)])
    assert torch.equal(raw(other, [(0, 64)]), given_sample.kv)


@pytest.mark.trap("T24")
def test_a_buffer_is_not_filled_again_before_it_was_hashed(
    tmp_path: Path, way: Callable[[torch.Tensor], ArenaBytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_bytes, "BATCH_BYTES", 300)
    hash_now = Digest._hash

    def hash_late(digest: Digest, buffers: Sequence[memoryview]) -> None:
        time.sleep(0.002)
        hash_now(digest, buffers)

    monkeypatch.setattr(Digest, "_hash", hash_late)
    file = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    assert file.digest == hashlib.sha256(arena(64).view(torch.uint8).numpy().tobytes()).digest()
    for _ in range(2):
        other = arena(64, seed=2)
        kv_file.read(file, other, [(0, 64)])
        assert torch.equal(raw(other, [(0, 64)]), raw(arena(64), [(0, 64)]))


def test_the_windows_of_a_segment_in_many_runs_are_taken_as_they_are(tmp_path: Path) -> None:
    slabs = arena(64 * 40)
    windows = SegmentWindows(tuple(Run(start, 1) for start in range(38, 0, -2))).of(0, 19 * 64)
    file = stored(tmp_path, manifest_of(19 * 64), slabs, windows)
    other = arena(19 * 64, seed=2)
    kv_file.read(file, other, [(0, 19 * 64)])
    assert torch.equal(raw(other, [(0, 19 * 64)]), raw(slabs, windows))


@pytest.mark.parametrize(("first", "count"), [(0, 64), (64, 64), (128, 64), (64, 128), (0, 192)])
def test_a_part_is_read_alone(
    tmp_path: Path, way: Callable[[torch.Tensor], ArenaBytes], first: int, count: int
) -> None:
    file = stored(tmp_path, manifest_of(192), arena(192), [(0, 192)])
    other = arena(count, seed=2)
    kv_file.read(file, other, [(0, count)], first_token=first)
    assert torch.equal(raw(other, [(0, count)]), raw(arena(192), [(first, first + count)]))


def test_a_part_is_verified_as_the_whole_is(tmp_path: Path) -> None:
    file = stored(tmp_path, manifest_of(128), arena(128), [(0, 128)])
    flip(file.path, file.size_bytes - 65)  # the last byte of the KV of the last token
    with pytest.raises(FileRejected):
        kv_file.read(file, arena(64), [(0, 64)])


@pytest.mark.parametrize(
    ("windows", "first"),
    [([(0, 65)], 0), ([(0, 64)], 1), ([(0, 0)], 65), ([(1, 0)], 0), ([(0, 1)], -1)],
)
def test_windows_that_the_file_cannot_fill_are_refused(tmp_path: Path, windows: Windows, first: int) -> None:
    file = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    with pytest.raises(ValueError, match="do not make 64 tokens"):
        kv_file.read(file, arena(128), windows, first_token=first)
    with pytest.raises(ValueError, match="do not make 64 tokens"):
        kv_file.write(tmp_path / "other", manifest_of(64), arena(128), [(0, 63)])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [5, 64])
def test_the_safetensors_library_opens_it(tmp_path: Path, dtype: torch.dtype, tokens: int) -> None:
    manifest = manifest_of(tokens, form=kv_format(dtype))
    slabs = arena(tokens, dtype=dtype)
    file = stored(tmp_path, manifest, slabs, [(0, tokens)])
    tensors = load_file(file.path)
    assert sorted(tensors) == ["digests", "kv"]
    assert tensors["kv"].dtype == dtype
    assert tensors["kv"].shape == (SHAPE.layers, 2, SHAPE.kv_heads, tokens, SHAPE.head_size)
    kv_bytes = tensors["kv"].view(torch.uint8)
    assert torch.equal(kv_bytes, slabs.view(torch.uint8))
    assert bytes(tensors["digests"][0].tolist()) == hashlib.sha256(kv_bytes.numpy().tobytes()).digest()
    with safe_open(file.path, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["fingerprint"] == manifest.format.fingerprint
    assert metadata["key"] == manifest.key.hex()
    assert metadata["owner"] == manifest.owner


def test_the_name_says_which_tokens_and_which_kv(tmp_path: Path) -> None:
    """Equal content has one name; other KV of the same tokens another."""
    first = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    again = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    other = stored(tmp_path, manifest_of(64), arena(64, seed=2), [(0, 64)])
    assert first == again
    assert first.path != other.path
    key = manifest_of(64).key.hex()[:32]
    assert [file.path.name[:33] for file in (first, other)] == [f"{key}-", f"{key}-"]


def test_a_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    assert file.path.stat().st_mode & 0o777 == 0o600


def flip(path: Path, place: int, mask: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)


@pytest.fixture
def small(tmp_path: Path) -> KvFile:
    given_sample = sample()
    return stored(tmp_path, given_sample.manifest, given_sample.slabs, given_sample.windows)


def test_a_file_that_is_cut_at_any_byte_is_rejected(small: KvFile) -> None:
    content = small.path.read_bytes()
    for length in range(len(content)):
        small.path.write_bytes(content[:length])
        assert inspected(small.path) == Rejection.TRUNCATED, length
        assert rejection(small) == Rejection.TRUNCATED, length


def test_a_file_with_any_byte_changed_is_rejected(small: KvFile) -> None:
    content = bytearray(small.path.read_bytes())
    kv_bytes = range(len(encode(small.manifest)), len(content) - 64)
    for place in range(len(content)):
        content[place] ^= 1 << place % 8
        small.path.write_bytes(content)
        content[place] ^= 1 << place % 8
        reason = rejection(small)
        if place in kv_bytes:
            assert (inspected(small.path), reason) == (None, Rejection.CORRUPT), place
        else:
            assert inspected(small.path) == reason, place


@SAME_FOLDER
@given(data=st.data())
def test_a_file_with_any_piece_replaced_removed_or_added_is_rejected(
    small: KvFile, data: st.DataObject
) -> None:
    content = small.path.read_bytes()
    try:
        start = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(start, len(content)))
        changed = content[:start] + data.draw(st.binary(max_size=200)) + content[stop:]
        small.path.write_bytes(changed)
        if changed != content:
            rejection(small)
    finally:
        small.path.write_bytes(content)


@SAME_FOLDER
@given(st.binary(max_size=400))
def test_rubbish_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rubbish.kv"
    path.write_bytes(content)
    assert inspected(path) in {Rejection.TRUNCATED, Rejection.CORRUPT}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    ("__metadata__",), ("kv",), ("digests",), ("kv", "shape"), ("kv", "dtype"), ("kv", "data_offsets"),
    *(("__metadata__", name) for name in (
        "format_version", "fingerprint", "root", "parent", "position", "token_ids", "owner", "born_at", "key",
    )),
]  # fmt: skip


def sealed(path: Path, document: Any, kv: bytes) -> Path:
    """A file with this header whose length and seal are right, whatever the header says."""
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    digest = hashlib.sha256(kv).digest()
    path.write_bytes(header + kv + digest + seal(header, digest))
    return path


def document_of(manifest: Manifest) -> Any:
    return json.loads(encode(manifest)[8:])


@SAME_FOLDER
@given(place=st.sampled_from(PLACES), value=JSON_VALUES)
def test_a_header_that_says_anything_else_is_rejected(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    """Well sealed, so that nothing but its content speaks against it. The name decides about what is otherwise sound."""
    given_sample = sample()
    document = document_of(given_sample.manifest)
    inner = document
    for name in place[:-1]:
        inner = inner[name]
    if inner[place[-1]] == value:
        return
    inner[place[-1]] = value
    path = sealed(tmp_path / "some.kv", document, given_sample.kv.numpy().tobytes())
    assert inspected(path) is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format_version": "0"}, Rejection.STALE),
        ({"fingerprint": "words:other weights"}, Rejection.STALE),
        ({"key": bytes(32).hex()}, Rejection.FOREIGN),
        ({"owner": "another"}, Rejection.FOREIGN),
        ({"owner": ""}, Rejection.FOREIGN),
        ({"position": "64"}, Rejection.FOREIGN),
        ({"position": "-64"}, Rejection.FOREIGN),
        ({"root": bytes(32).hex()}, Rejection.FOREIGN),
        ({"parent": bytes(32).hex()}, Rejection.FOREIGN),
        ({"token_ids": "AQAAAAIAAAADAAAA"}, Rejection.FOREIGN),
        ({"token_ids": "AQAAAAIAAAA="}, Rejection.CORRUPT),
        ({"token_ids": "AQ=="}, Rejection.CORRUPT),
        ({"token_ids": "AQAAAAIAAAADAAA_"}, Rejection.CORRUPT),
        ({"key": "00"}, Rejection.CORRUPT),
        ({"born_at": "01"}, Rejection.CORRUPT),
        ({"born_at": "soon"}, Rejection.CORRUPT),
    ],
)
def test_the_reason_tells_another_model_from_other_tokens_and_from_damage(
    tmp_path: Path, change: dict[str, str], reason: Rejection
) -> None:
    given_sample = sample()
    document = document_of(given_sample.manifest)
    document["__metadata__"].update(change)
    path = sealed(tmp_path / "some.kv", document, given_sample.kv.numpy().tobytes())
    assert inspected(path) == reason


@pytest.mark.parametrize(
    "form",
    [
        kv_format(torch.float16),
        kv_format(shape=ModelShape(layers=1, kv_heads=2, head_size=4, context_tokens=1)),
        kv_format(shape=ModelShape(layers=2, kv_heads=1, head_size=4, context_tokens=1)),
        kv_format(shape=ModelShape(layers=2, kv_heads=2, head_size=8, context_tokens=1)),
        kv_format(fingerprint="words:other weights"),
    ],
)
def test_kv_of_another_model_or_number_format_is_stale(small: KvFile, form: Any) -> None:
    with pytest.raises(FileRejected) as caught:
        kv_file.inspect(small.path, form)
    assert caught.value.reason == Rejection.STALE


def test_a_whole_file_in_the_place_of_another_is_foreign(tmp_path: Path) -> None:
    first = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    other = stored(tmp_path, manifest_of(64, seed=2), arena(64), [(0, 64)])
    newer = stored(tmp_path, manifest_of(64), arena(64, seed=2), [(0, 64)])
    for replacement in (other, newer):
        first.path.write_bytes(replacement.path.read_bytes())
        assert inspected(first.path) == Rejection.FOREIGN
        assert rejection(first) == Rejection.FOREIGN


def test_tokens_are_compared_even_where_all_hashes_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = keys.BlockKey(bytes(32))
    root = keys.BlockKey(b"\x01" * 32)
    monkeypatch.setattr("workers.engine.tiers.manifest.last_key", lambda *_: constant)
    first, second = (
        Manifest.of(kv_format(), root=root, parent=root, position=0, token_ids=(token,) * 64, born_at=1)
        for token in (1, 2)
    )
    file = stored(tmp_path, first, arena(64), [(0, 64)])
    path = stored(tmp_path / "second", second, arena(64), [(0, 64)]).path
    assert path.name == file.path.name
    file.path.write_bytes(path.read_bytes())
    assert rejection(file) == Rejection.FOREIGN


def test_what_is_no_plain_file_is_unreadable(tmp_path: Path, small: KvFile) -> None:
    link, folder, pipe = tmp_path / "link.kv", tmp_path / "folder.kv", tmp_path / "pipe.kv"
    link.symlink_to(small.path)
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (link, folder, pipe, tmp_path / "missing.kv"):
        assert inspected(path) == Rejection.UNREADABLE, path


def test_a_disk_that_fails_makes_the_file_unreadable(small: KvFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "readv", fails)
    assert rejection(small) == Rejection.UNREADABLE


def test_a_file_that_is_cut_while_it_is_read_is_truncated(
    small: KvFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "readv", lambda *_: 0)
    assert rejection(small) == Rejection.TRUNCATED


@pytest.mark.parametrize(
    ("tokens", "position", "owner"),
    [
        (0, 0, ""),
        (63, 0, ""),
        (65, 0, ""),
        (64, 0, "cache"),
        (0, 0, "cache"),
        (64, 64, ""),
        (64, 1, ""),
        (64, -64, ""),
    ],
)
def test_what_no_file_may_hold_makes_no_manifest(tokens: int, position: int, owner: str) -> None:
    with pytest.raises(ValueError, match="no KV file"):
        manifest_of(tokens, position=position, owner=owner)


def test_blocks_after_others_name_the_block_before_them(tmp_path: Path) -> None:
    first = manifest_of(128)
    second = manifest_of(64, parent=first.key, position=128, seed=2)
    third = manifest_of(10, parent=second.key, position=192, seed=3)
    files = [
        stored(tmp_path, each, arena(128), [(0, len(each.token_ids))]) for each in (first, second, third)
    ]
    assert [file.manifest for file in files] == [first, second, third]
    assert first.key == keys.block_keys(first.root, first.token_ids)[-1]


@pytest.mark.parametrize(
    ("slabs", "windows", "message"),
    [
        (arena(64), [(1, 65)], "beyond an arena of 64"),
        (arena(128), [(-64, 0)], "beyond an arena of 128"),
        (arena(64, dtype=torch.bfloat16), [(0, 64)], "does not hold"),
        (arena(64, shape=ModelShape(3, 2, 4, 1)), [(0, 64)], "does not hold"),
    ],
)
def test_an_arena_that_cannot_have_these_windows_is_refused(
    tmp_path: Path, slabs: torch.Tensor, windows: Windows, message: str
) -> None:
    file = stored(tmp_path, manifest_of(64), arena(64), [(0, 64)])
    with pytest.raises(ValueError, match=message):
        kv_file.write(tmp_path / "other", manifest_of(64), slabs, windows)
    with pytest.raises(ValueError, match=message):
        kv_file.read(file, slabs, windows)
    assert names(tmp_path) == [file.path.name]
