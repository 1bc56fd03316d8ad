"""Files are replaced whole or not at all; what the disk refuses is one sentence; one hash."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from floatscope.errors import UserError
from floatscope.files import file_hash, making_folder, read_json, read_text, replace_json, replace_text, replacing


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    replace_text(path, "old")
    os.link(path, tmp_path / "link")
    with replacing(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert path.read_text() == "new" and (tmp_path / "link").read_text() == "old"
    with pytest.raises(KeyError), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "new" and sorted(os.listdir(tmp_path)) == ["a.txt", "link"]


def test_a_new_file_has_the_rights_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("x")
            temporary.chmod(0o600)  # as safetensors leaves its files
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_what_cannot_be_written_is_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in ("nowhere/a", "pipe", "x" * 300, ".", "a\0b", "\ud800"):
        with pytest.raises(UserError, match="cannot be written"):
            replace_text(tmp_path / place, "x")
    for place in ("nowhere", "x" * 300, "a\0b", "\ud800"):
        with pytest.raises(UserError, match="cannot be read"):
            file_hash(tmp_path / place)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with (
        pytest.raises(UserError, match=r"a cannot be written \(No space left on device\): check"),
        replacing(tmp_path / "a"),
    ):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == ["pipe"]


def test_folders_are_made_whole_and_the_first_one_stays(tmp_path):
    folder = tmp_path / "deep" / "made"
    with pytest.raises(KeyError), making_folder(folder) as made:
        made.mkdir()
        raise KeyError
    assert not folder.exists() and os.listdir(folder.parent) == []
    for text, replace, kept in (("first", False, "first"), ("second", False, "first"), ("third", True, "third")):
        with making_folder(folder, replace) as made:
            made.mkdir()
            (made / "file").write_text(text)
            assert text == "first" or (folder / "file").exists()
        assert (folder / "file").read_text() == kept and os.listdir(folder.parent) == ["made"]


def test_a_device_is_not_read():
    """/dev/zero has no end; /dev/null shows the same without filling the memory."""
    with pytest.raises(UserError, match="is a device: give a file"):
        read_text(Path("/dev/null"))


def test_json_is_an_object_or_a_sentence(tmp_path):
    replace_json(tmp_path / "a.json", {"b": [1]})
    assert read_json(tmp_path / "a.json") == {"b": [1]}
    for content, told in (
        (b"{", "not valid JSON"),
        (b"[]", "not a list"),
        (b"\xff", "UTF-8"),
        (b"[" * 10**5, "deeply"),
    ):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(UserError, match=told):
            read_json(tmp_path / "a.json")


def test_the_hash_is_sha256_and_the_hubs_own_name_is_believed(tmp_path):
    content = b"x" * 5_000_000
    (tmp_path / "a").write_bytes(content)
    wanted = hashlib.sha256(content).hexdigest()
    assert file_hash(tmp_path / "a") == wanted
    blob = tmp_path / ("0" * 64)
    blob.write_bytes(b"other")
    (tmp_path / "link").symlink_to(blob)
    assert file_hash(tmp_path / "link") == "0" * 64
    (tmp_path / "plain link").symlink_to(tmp_path / "a")
    assert file_hash(tmp_path / "plain link") == wanted
    with pytest.raises(UserError, match="cannot be read"):
        file_hash(tmp_path)
