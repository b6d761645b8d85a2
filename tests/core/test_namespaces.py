import hashlib
import hmac
from pathlib import Path

import pytest

from core.namespaces import Namespaces
from core.secret import RootSecret

ROOT = RootSecret(bytes(range(32)))


@pytest.mark.trap("T20")
def test_each_project_has_one_of_its_own() -> None:
    namespaces = Namespaces(ROOT)
    found = {namespaces.of(project_id) for project_id in ("proj_a", "proj_b", "proj_ab", "")}
    assert len(found) == 4
    assert all(len(each) == 32 for each in found)


def test_it_is_the_same_after_a_restart_and_another_under_another_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = Namespaces(RootSecret.load_or_create(path)).of("proj_a")
    assert Namespaces(RootSecret.load_or_create(path)).of("proj_a") == first
    assert Namespaces(ROOT).of("proj_a") != first


def test_it_is_keyed_with_the_salt_for_kv() -> None:
    expected = hmac.new(ROOT.derive("kv-salt"), b"proj_a", hashlib.sha256).digest()
    assert Namespaces(ROOT).of("proj_a") == expected
