"""What the store in Redis promises beyond every store: outages, repeated requests, who joins, settings of servers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from shoal.cluster.stores.redis import RedisLink, RedisStore, key_of, worries
from shoal.core.store.interface import ReadyBatch, Store, TaskStanding
from shoal.core.store.memory import MemoryStore
from shoal.errors import InputError, RunError
from shoal.sim.workloads.matrix import fan_out
from support.redis_servers import CAREFUL, RedisServer, cluster_of_three, free_port, one_server
from support.stores import NODES, diamond, started
from support.strikes import Strikes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with one_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with cluster_of_three(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


# ---- outages -----------------------------------------------------------------------------------------------------


def _play(store: Store, one_more_deed: Callable[[], None] = lambda: None) -> list[tuple[list[int], ReadyBatch]]:
    """Completes everything, one task at a time, and keeps all answers."""
    answers = []
    queue = started(store)
    for ticket in queue:  # grows while we walk it
        answers.append(store.complete(ticket.task % NODES, [(ticket.task, ticket.attempt + 1)]))
        queue += answers[-1][1].tickets
        one_more_deed()
    return answers


def test_nothing_is_lost_or_done_twice_when_the_server_is_killed(tmp_path: Path) -> None:
    work = fan_out(1, 600)
    with one_server(tmp_path, *CAREFUL) as server:
        store = RedisStore.bring(RedisLink([server.address], key_of("r", "rows")), "r", work, NODES)
        strikes = Strikes(server, lambda: store._link.breaks, (100, 250, 400))
        with strikes.striking():
            answers = _play(store, strikes.one_more_deed)
        assert answers == _play(MemoryStore(work, NODES))
        assert store.left == 0
        assert store._link.breaks >= 3
        store.close()


def test_an_operation_that_is_sent_again_gets_the_same_answer(server: RedisServer) -> None:
    store = RedisStore.bring(RedisLink([server.address], key_of("twice", "rows")), "twice", diamond(), NODES)
    started(store)
    first = store.complete(0, [(0, 1)])
    store._sequence -= 1
    assert store.complete(0, [(0, 1)]) == first
    assert store.left == 3
    store.forget()
    store.close()


def test_a_request_that_was_overtaken_changes_nothing(server: RedisServer) -> None:
    store = RedisStore.bring(RedisLink([server.address], key_of("late", "rows")), "late", diamond(), NODES)
    started(store)
    late = (store._client, store._sequence, "1", "cancel", b"\x91\x00")
    store.copied(4, 1)
    assert store._link.run(store._other, store._keys, *late) == b""
    assert store.left == 4
    store.forget()
    store.close()


def test_the_scripts_are_loaded_again_when_the_server_has_forgotten_them(server: RedisServer) -> None:
    store = RedisStore.bring(RedisLink([server.address], key_of("sha", "rows")), "sha", diamond(), NODES)
    started(store)
    store._link.call("SCRIPT", "FLUSH")
    assert store.complete(0, [(0, 1)])[0] == [0]
    store.forget()
    store.close()


def test_in_a_cluster_runs_lie_on_all_masters(cluster: list[RedisServer]) -> None:
    addresses = [server.address for server in cluster]
    stores = []
    for number in range(12):
        link = RedisLink(addresses, key_of(f"spread-{number}", "rows"))
        stores.append(RedisStore.bring(link, f"spread-{number}", diamond(), NODES))
    sizes = []
    for server in cluster:
        with redis.Redis(unix_socket_path=server.socket) as client:
            sizes.append(client.dbsize())
    assert min(sizes) > 0
    for store in stores:
        store.forget()
        store.close()


# ---- runs and servers --------------------------------------------------------------------------------------------


def test_whoever_joins_a_run_finds_its_work_and_its_state(server: RedisServer) -> None:
    address, work = [server.address], fan_out(3, 50)
    store = RedisStore.bring(RedisLink(address, key_of("joined", "rows")), "joined", work, NODES)
    started(store)
    store.complete(0, [(0, 1)])
    other = RedisStore.attach(RedisLink(address, key_of("joined", "rows")), "joined")
    found = other.work()
    for column in ("seconds", "category", "waits_for", "child_start", "children", "inputs", "outputs", "file_bytes"):
        assert list(getattr(found, column)) == list(getattr(work, column)), column
    assert found.profiles == work.profiles
    assert other.standings().count(TaskStanding.DONE) == 1
    other.close()
    store.forget()
    with pytest.raises(InputError, match="no run 'joined'"):
        RedisStore.attach(store._link, "joined")
    store.close()


def test_a_run_is_created_once(server: RedisServer) -> None:
    link = RedisLink([server.address], key_of("same", "rows"))
    store = RedisStore.bring(link, "same", diamond(), NODES)
    with pytest.raises(InputError, match="already has a run 'same'"):
        RedisStore.bring(link, "same", diamond(), NODES)
    store.forget()
    store.close()


def test_an_address_without_a_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Redis server replies at unix://"):
        RedisLink([f"unix://{tmp_path}/none"], "{r}", patience=0.1)
    with pytest.raises(InputError, match="is not the address of a Redis server"):
        RedisLink(["http://nowhere"], "{r}")


def test_a_wrong_password_is_reported_at_once(tmp_path: Path) -> None:
    with one_server(tmp_path, "--requirepass", "right") as server:
        with pytest.raises(InputError, match="rejects the login"):
            RedisLink([server.address], "{r}")
        RedisLink([f"unix://:right@{server.socket}"], "{r}").close()


def test_a_server_that_may_forget_is_reported(tmp_path: Path) -> None:
    with one_server(tmp_path / "careful", *CAREFUL) as server:
        link = RedisLink([server.address], "{r}")
        assert worries(link) == {}
        link.close()
    careless = ("--appendonly", "no", "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
    with one_server(tmp_path, *careless) as other:
        link = RedisLink([other.address], "{r}")
        found = worries(link)
        assert list(found) == ["appendonly", "maxmemory-policy", "maxmemory"]
        assert "appendonly yes" in found["appendonly"]
        link.call("CONFIG", "SET", "appendonly", "yes")
        assert "appendfsync always" in worries(link)["appendfsync"]
        link.close()


def test_full_memory_stops_the_run_and_changes_nothing(tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        store = RedisStore.bring(RedisLink([server.address], key_of("full", "rows")), "full", diamond(), NODES)
        started(store)
        store._link.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(RunError, match="out of memory"):
            store.complete(0, [(0, 1)])
        store._link.call("CONFIG", "SET", "maxmemory", "0")
        assert store.left == 4
        assert store.complete(0, [(0, 1)])[0] == [0]
        store.close()


def test_a_server_that_lost_its_data_is_noticed(tmp_path: Path) -> None:
    with one_server(tmp_path, "--appendonly", "no") as server:
        store = RedisStore.bring(RedisLink([server.address], key_of("gone", "rows")), "gone", diamond(), NODES)
        started(store)
        server.kill()
        server.start()
        with pytest.raises(RunError, match="no longer has this run"):
            store.complete(0, [(0, 1)])
        store._link.close()


def make_certificate(folder: Path) -> tuple[str, str]:
    """Key and certificate of a server on this machine, which vouches for itself."""
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    return key, certificate


def test_a_server_behind_tls_and_a_password_serves_those_who_trust_it(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    port = free_port()
    files = ("--tls-key-file", key, "--tls-cert-file", certificate, "--tls-ca-cert-file", certificate)
    tls = ("--tls-port", str(port), *files, "--tls-auth-clients", "no", "--requirepass", "open sesame")
    with one_server(tmp_path, *tls):
        known = f"rediss://:open%20sesame@127.0.0.1:{port}?ssl_ca_certs={certificate}"
        link = RedisLink([known], key_of("tls", "summary"))
        store = RedisStore.bring(link, "tls", fan_out(1, 4, degree=3), 1)
        assert store.complete(0, [(ticket.task, 1) for ticket in store.begin().tickets])[0] == [0]
        store.close()
        with pytest.raises(InputError, match="no Redis server replies"):
            RedisLink([f"rediss://:open%20sesame@127.0.0.1:{port}"], "k", patience=0.5)  # nobody vouches for it
        with pytest.raises(InputError, match="rejects the login"):
            RedisLink([known.replace("sesame", "barley")], "k", patience=0.5)
