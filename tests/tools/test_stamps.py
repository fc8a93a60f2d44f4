# SPDX-License-Identifier: Apache-2.0
"""Stamps: finished work is recognized, changed or damaged work is not."""

from __future__ import annotations

from pathlib import Path

from fltool.stamps import Stamp, fingerprint, locked


def test_a_written_stamp_matches_the_same_fingerprint_only(tmp_path: Path) -> None:
    stamp = Stamp(tmp_path / "stamp.json")
    stamp.write("requirements", "abc")
    assert stamp.matches("requirements", "abc")
    assert not stamp.matches("requirements", "abd")
    assert not stamp.matches("packages", "abc")


def test_writing_one_part_keeps_the_others(tmp_path: Path) -> None:
    stamp = Stamp(tmp_path / "stamp.json")
    stamp.write("requirements", "abc")
    stamp.write("packages", "def")
    assert stamp.matches("requirements", "abc")


def test_a_missing_or_damaged_stamp_matches_nothing(tmp_path: Path) -> None:
    stamp = Stamp(tmp_path / "stamp.json")
    assert not stamp.matches("requirements", "abc")
    for content in ("", "{", "[1, 2]", "null"):
        stamp.path.write_text(content)
        assert not stamp.matches("requirements", "abc")


def test_a_fingerprint_follows_file_contents(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("a==1\n")
    before = fingerprint(files=[file])
    assert fingerprint(files=[file]) == before
    file.write_text("a==2\n")
    assert fingerprint(files=[file]) != before


def test_a_fingerprint_tells_values_apart_at_their_borders() -> None:
    assert fingerprint(values=["ab", "c"]) != fingerprint(values=["a", "bc"])


def test_a_lock_can_be_taken_again_after_it_was_released(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "deep" / "x.lock"):
            pass
