import time

import pytest

from bench import machine


def test_it_waits_until_the_load_has_faded(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = [(2.0, 1.0, 1.0), (0.9, 1.0, 1.0), (0.4, 1.0, 1.0)]
    told: list[float] = []
    monkeypatch.setattr(machine, "load", lambda: loads[0])
    monkeypatch.setattr(time, "sleep", lambda _: loads.pop(0))
    assert machine.wait_until_quiet(told.append) == (0.4, 1.0, 1.0)
    assert told == [2.0, 0.9]


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(machine, "load", lambda: (3.0, 3.0, 3.0))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert machine.wait_until_quiet(lambda _: None) == (3.0, 3.0, 3.0)
    assert now[0] == pytest.approx(300, abs=1)
