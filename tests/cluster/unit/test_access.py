"""Access files: what each holder gets, how they lie on disk, and one sentence for each way to be wrong."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.messaging.access import Access, Role, make_access, narrowed, parse, read, write
from shoal.errors import InputError

STORE = "redis://:password@store:6379"
FULL = make_access("corals").at(["tcp://a:1", "tcp://[::1]:65535"], STORE)


def secrets_of(access: Access) -> set[str]:
    return {pair.secret for pair in (access.server, *access.roles.values()) if pair.secret}


def saved(folder: Path, change: dict[str, Any] | None = None) -> str:
    path = str(folder / "access.json")
    write(FULL, path)
    if change is not None:
        value = json.loads(Path(path).read_text())
        value.update(change)
        Path(path).write_text(json.dumps(value))
    return path


def refusal(path: str) -> str:
    with pytest.raises(InputError) as raised:
        read(path)
    assert raised.value.remedy
    assert raised.value.file == path
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert read(saved(tmp_path)) == FULL


def test_only_the_owner_can_read_the_file_and_its_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "clusters" / "access.json"
    before = os.umask(0)
    try:
        write(FULL, str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["access.json"]


def test_writing_replaces_a_file_whole(tmp_path: Path) -> None:
    path = saved(tmp_path)
    os.chmod(path, 0o644)
    other = make_access("other")
    write(other, path)
    assert read(path) == other


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write(FULL, str(tmp_path / "file" / "access.json"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write(FULL, str(tmp_path / "folder"))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_two_clusters_of_one_name_have_nothing_in_common() -> None:
    one, other = make_access("a"), make_access("a")
    assert one.cluster != other.cluster
    assert not secrets_of(one) & secrets_of(other)
    assert len(secrets_of(one)) == 4


def test_a_worker_gets_the_keys_of_agents_and_knows_the_others_by_their_public_ones() -> None:
    worker = narrowed(FULL, Role.WORKER)
    assert worker.held() == [Role.WORKER]
    assert secrets_of(worker) == {FULL.server.secret, FULL.roles[Role.WORKER].secret}
    assert {role: pair.public for role, pair in worker.roles.items()} == {
        role: pair.public for role, pair in FULL.roles.items()
    }
    assert worker.store == STORE


@pytest.mark.parametrize("role", [Role.CLIENT, Role.VIEWER])
def test_clients_and_viewers_get_their_own_pair_and_no_store(role: Role) -> None:
    narrow = narrowed(FULL, role)
    assert secrets_of(narrow) == {FULL.roles[role].secret}
    assert list(narrow.roles) == [role]
    assert narrow.server.public == FULL.server.public
    assert narrow.store is None
    assert narrow.contacts == FULL.contacts
    with pytest.raises(InputError, match="has no key to run an agent"):
        narrow.server_pair()


@pytest.mark.parametrize("role", list(Role))
def test_a_narrowed_access_can_be_written_and_read_and_not_widened(role: Role, tmp_path: Path) -> None:
    path = str(tmp_path / "narrow.json")
    write(narrowed(FULL, role), path)
    found = read(path)
    assert found == narrowed(FULL, role)
    assert narrowed(found, role) == found
    for other in Role:
        if other is not role:
            with pytest.raises(InputError, match=f"has no key for the role of a {other}"):
                narrowed(found, other)


def test_secrets_are_not_shown() -> None:
    shown = f"{FULL!r} {FULL} {FULL.server!r} {FULL.roles!r}"
    assert not any(secret in shown for secret in secrets_of(FULL))
    assert "password" not in shown


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "there is no access file here" in refusal(str(tmp_path / "none.json"))


def test_a_folder_is_not_an_access_file(tmp_path: Path) -> None:
    assert "not a regular file" in refusal(str(tmp_path))


def test_a_pipe_does_not_make_us_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a regular file" in refusal(str(tmp_path / "pipe"))


@pytest.mark.parametrize(("mode", "can"), [(0o640, "read"), (0o604, "read"), (0o620, "change"), (0o602, "change")])
def test_a_file_open_to_others_is_not_used(mode: int, can: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    os.chmod(path, mode)
    assert f"other users can {can}" in (said := refusal(path))
    assert f"chmod 600 {path}" in said
    os.chmod(path, 0o600)
    assert read(path) == FULL


@pytest.mark.parametrize("text", ["", "hello", "[1, 2]", '{"kind": "other"}', "null", "[" * 100_000, "\x00\xff"])
def test_another_kind_of_file_is_distinguished(text: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    Path(path).write_text(text, encoding="latin-1")
    assert "this is not an access file of Shoal" in refusal(path)


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = saved(tmp_path)
    os.truncate(path, 1 << 40)
    assert "this is not an access file of Shoal" in refusal(path)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_names_both(version: object, tmp_path: Path) -> None:
    said = refusal(saved(tmp_path, {"format": version}))
    assert f"format {version!r}" in said
    assert "knows format 1" in said


def test_a_file_cut_short_is_damaged(tmp_path: Path) -> None:
    path = saved(tmp_path)
    text = Path(path).read_text()
    Path(path).write_text(text[:-10])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        {"server": {"public": "short"}},
        {"server": {"public": "#" * 40}},
        {"server": {"public": "ä" * 40}},
        {"server": {"public": FULL.server.public, "secret": FULL.roles[Role.VIEWER].secret}},
        {"server": {"public": FULL.server.public, "secret": "~" * 40}},
        {"server": 5},
        {"roles": {"king": {"public": FULL.server.public}}},
        {"name": None},
    ],
)
def test_keys_that_are_none_or_do_not_belong_together_are_damage(change: dict[str, Any], tmp_path: Path) -> None:
    assert "damaged" in refusal(saved(tmp_path, change))


def test_a_file_without_a_secret_key_is_no_use(tmp_path: Path) -> None:
    assert "no secret key" in refusal(saved(tmp_path, {"roles": {}}))


@pytest.mark.parametrize("contact", ["a:1", "tcp://a", "tcp://a:0", "tcp://a:65536", "udp://a:1", "tcp://a:1/b", ""])
def test_a_contact_that_is_no_address_is_named(contact: str, tmp_path: Path) -> None:
    assert repr(contact) in refusal(saved(tmp_path, {"contacts": [contact]}))


@given(st.data())
def test_a_file_with_some_bytes_changed_is_read_or_refused_in_one_sentence(data: st.DataObject) -> None:
    changed = bytearray(msgspec.json.encode(FULL))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        access = parse(bytes(changed), "access.json")
    except InputError as error:
        assert error.remedy
        assert str(error).startswith("access.json: ")
    else:
        assert access.held()


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(InputError):
        parse(data, "access.json")
