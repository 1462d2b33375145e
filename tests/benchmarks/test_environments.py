"""Peers' environments: made once, or not there for a reason that is told."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import contest, environments

EMPTY = environments.Environment("empty", packages=(), alone=(), check="")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tfembed-benchmarks"


@pytest.mark.slow
def test_a_library_that_is_not_installed_has_an_empty_one_in_its_place(folder):
    python = dataclasses.replace(
        EMPTY,
        stand_ins=("pip", "libnone.so.1"),
        check="import pip, ctypes, pathlib;"
        "at = pathlib.Path(pip.__file__).parent / 'libnone.so.1';"
        "ctypes.CDLL(str(at))",
    ).python
    assert python.startswith(str(folder))
    assert (folder / "empty" / "ready").exists()


@pytest.mark.slow
def test_a_peer_that_does_not_load_is_left_out_and_says_why(
    folder, monkeypatch, capsys
):
    peer = dataclasses.replace(EMPTY, check="raise OSError('no such vectors')")
    monkeypatch.setitem(contest.ENVIRONMENTS, "peer", peer)

    assert not contest.can_take_part("peer")
    assert not contest.can_take_part("peer")

    told = capsys.readouterr().out
    assert told.count("peer does not take part: OSError: no such vectors") == 1
    assert not (folder / "empty" / "ready").exists()


def test_an_environment_that_is_there_is_not_made_again(folder):
    (folder / "empty").mkdir(parents=True)
    (folder / "empty" / "ready").touch()
    assert EMPTY.python == str(folder / "empty" / "bin" / "python")


def test_contenders_of_this_environment_can_take_part():
    assert contest.can_take_part("tfembed")
