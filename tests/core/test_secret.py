import hashlib
import hmac
import threading
from pathlib import Path

import pytest

from core.errors import SecretInvalid
from core.secret import RootSecret


def test_the_first_start_makes_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    RootSecret.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32
    assert list(tmp_path.iterdir()) == [path]


def test_the_next_start_reads_the_same_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = RootSecret.load_or_create(path).derive("kv-salt")
    assert RootSecret.load_or_create(path).derive("kv-salt") == first


def test_two_first_starts_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    start = threading.Barrier(8)
    keys: list[bytes] = []

    def run() -> None:
        start.wait()
        keys.append(RootSecret.load_or_create(path).derive("kv-salt"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_each_purpose_has_a_key_of_its_own(tmp_path: Path) -> None:
    secret = RootSecret.load_or_create(tmp_path / "secret")
    keys = {secret.derive(purpose) for purpose in ("api-key-pepper", "kv-salt", "page-token")}
    assert len(keys) == 3
    assert all(len(key) == 32 for key in keys)


def test_deriving_is_hkdf_with_sha256() -> None:
    root = bytes(range(32))
    extracted = hmac.new(b"headstart root secret v1", root, hashlib.sha256).digest()
    expanded = hmac.new(extracted, b"kv-salt\x01", hashlib.sha256).digest()
    assert RootSecret(root).derive("kv-salt") == expanded


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_file_of_another_size_is_refused_and_left_alone(tmp_path: Path, size: int) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(bytes(size))
    with pytest.raises(SecretInvalid, match=f"{size} bytes instead of 32"):
        RootSecret.load_or_create(path)
    assert len(path.read_bytes()) == size


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    RootSecret.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(SecretInvalid, match="chmod 600"):
        RootSecret.load_or_create(path)


def test_a_secret_does_not_show_in_a_message() -> None:
    root = bytes(range(65, 97))
    assert "ABC" not in repr(RootSecret(root))
