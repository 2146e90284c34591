"""Faults on demand, and the connections that commands make."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from pbs_adapter.minipbs import Config, Host
from pbs_adapter.minipbs.faults import PORTS_TEXT, WINDOW, Faults
from pbs_adapter.minipbs.peers import Peers
from pbs_adapter.minipbs.protocol import pack_request, take_piece

from .runner import Result, minipbs
from .site import Site, alive, eventually

CONFIG = Config(server="alpha", hosts=(Host("alpha", 16),), resources_default={"walltime": "01:00:00"})


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with minipbs(CONFIG) as runner:
        yield Site(runner)


@pytest.fixture(autouse=True)
def _calm(site: Site) -> Iterator[None]:
    yield
    for name in ("connection-budget", "slow", "refuse", "lose-reply", "garbage", "down"):
        site.server.fault(name, "off")
    site.server.fault("history", "on")


def connections(site: Site) -> int:
    total: int = site.server.stats()["connections"]
    return total


def background(site: Site) -> None:
    """Make sure that the user's background qsub is there: the first qsub starts it, and does not wait for it."""

    def shared() -> bool:
        before = connections(site)
        site.ok("qsub -h -- /bin/true")
        return connections(site) == before

    eventually(shared)


def test_qsub_without_f_shares_one_connection(site: Site) -> None:
    background(site)
    before = connections(site)
    site.ok("for i in 1 2 3 4 5; do qsub -h -N n$i -- /bin/true; done")
    script = "echo hello\n" * 50_000
    site.script("large.sh", script)
    site.ok("qsub -h large.sh")
    assert connections(site) == before
    site.ok("qsub -f -h -- /bin/true; qsub -f -h -- /bin/true")
    assert connections(site) == before + 2
    site.ok("A=1 qsub -V -h -- /bin/true; qstat -B; qselect")
    assert connections(site) == before + 5


def test_background_qsub_ends_with_the_server(site: Site) -> None:
    background(site)
    found = subprocess.run(["pgrep", "-f", f"{site.runner.prefix}/bin/qsub"], capture_output=True, text=True).stdout
    pids = [int(pid) for pid in found.split()]
    assert len(pids) == 1
    site.server.stop()
    eventually(lambda: not alive(pids[0]))
    site.server.start()
    site.ok("qsub -h -- /bin/true")


def test_many_submissions_at_once(site: Site) -> None:
    out = site.ok("seq 60 | xargs -P8 -I@ qsub -h -N at-once-@ -- /bin/true")
    assert len(set(out.split())) == 60
    assert len(site.ok("qselect -N at-once-17").split()) == 1


def test_connection_budget_hangs_commands_until_a_port_is_free(site: Site) -> None:
    background(site)
    site.server.fault("connection-budget", 1)  # far exceeded already
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(site.sh("qstat -B")))
    thread.start()
    site.ok("qsub -h -- /bin/true")  # the background process has its connection
    thread.join(0.5)
    assert not results
    site.server.fault("connection-budget", "off")
    thread.join(10)
    assert results[0].exit_status == 0


def test_connection_budget_is_a_sliding_minute() -> None:
    faults = Faults()
    faults.set("connection-budget", "3")
    assert [faults.admit(at) for at in (0, 1, 2, 3)] == [True, True, True, False]
    assert not faults.admit(WINDOW - 0.1)
    assert faults.admit(WINDOW + 0.1)
    assert not faults.admit(WINDOW + 0.2)
    assert faults.stats(WINDOW + 0.2, 1000.0)["connections"] == 4


def test_commands_without_a_port_fail_with_pbs_iffs_words(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pbs_adapter.minipbs.peers.WINDOW", 0.0)
    faults = Faults(budget=0)
    selector = selectors.DefaultSelector()
    peers = Peers(selector, CONFIG, faults, lambda request: iter([0]))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        path = str(site.home / "door")
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        client.connect(path)
        client.sendall(pack_request("qdel", "/", "-", [b"1"], [], b""))
        peers.accept(listener)
        peers.turn(time.monotonic())
        (key, mask), *_ = selector.select(1)
        peers.event(key.data[1], mask)
        peers.flush()
        reply = bytearray(client.recv(4096))
    selector.close()
    assert take_piece(reply) == (b"e", f"{PORTS_TEXT}qdel: cannot connect to server alpha (errno=15010)\n".encode())
    assert take_piece(reply) == (b"x", b"162")
    assert faults.refused == 1


@pytest.mark.parametrize("fault", ["refuse", "down"])
def test_unreachable_server(site: Site, fault: str) -> None:
    job = site.ok("qsub -- /bin/sleep 2")
    site.server.fault(fault, "on")
    for command, status in {"qstat": 255, "qdel 1": 162, "qsub -f -- /bin/true": 162, "pbsnodes -av": 1}.items():
        result = site.sh(command)
        name = command.split()[0]
        text = f"Connection refused\n{name}: cannot connect to server alpha (errno=15010)\n"
        assert (result.exit_status, result.stderr.decode()) == (status, text)
    if fault == "down":
        assert site.sh("qsub -h -- /bin/true").exit_status == 162
    site.server.fault(fault, "off")
    site.state(job, "F", 92)


@pytest.mark.parametrize("option", ["", "-f"])
def test_lost_reply_of_an_accepted_job(site: Site, option: str) -> None:
    background(site)
    site.server.fault("lose-reply", 1)
    name = f"lost{option}"
    result = site.sh(f"qsub {option} -h -N {name} -- /bin/true")
    assert (result.stdout, result.exit_status) == (b"", 183 if option else 255)
    assert result.stderr == (b"qsub: Error 15031\n" if option else b"Failed to recv data from background qsub\n")
    assert len(site.ok(f"qselect -N {name}").split()) == 1
    assert site.ok(f"qsub {option} -h -N {name} -- /bin/true")


def test_garbage_breaks_json_only(site: Site) -> None:
    job = site.ok("qsub -h -- /bin/true")
    site.server.fault("garbage", "on")
    for command in (f"qstat -f -F json {job}", "pbsnodes -av -F json", "qstat -Q -f -F json"):
        result = site.sh(command)
        with pytest.raises(json.JSONDecodeError):
            json.loads(result.text)
    assert f"Job Id: {job}" in site.ok(f"qstat -f {job}")


def test_slow_replies(site: Site) -> None:
    site.server.fault("slow", 0.3)
    begun = time.monotonic()
    site.ok("qstat -B")
    assert time.monotonic() - begun >= 0.3


def test_vanished_job_is_unknown_and_its_processes_live_on_or_not(site: Site) -> None:
    pids = []
    for how in ("", ":kill"):
        out = site.home / f"vanish{how[1:]}.out"
        job = site.ok(f"qsub -j oe -koed -o '{out}' -- /bin/sh -c 'echo $$; exec sleep 60'")
        eventually(lambda out=out: out.exists() and out.read_text().strip().isdigit())  # type: ignore[misc]
        pids.append(int(out.read_text()))
        site.running(job)
        site.server.fault("vanish", job + how)
        assert site.sh(f"qstat -x {job}").exit_status == 153
    eventually(lambda: not alive(pids[1]))
    assert alive(pids[0])
    with pytest.raises(ValueError, match="no such job"):
        site.server.fault("vanish", "1.nosuch")


def test_fault_command(site: Site) -> None:
    def tool(words: str) -> Result:
        return site.sh(f"minipbs-fault {words}", user="root")

    assert json.loads(tool("stats").text)["connections"] == connections(site)
    assert tool("slow 0").exit_status == 0
    assert tool("nonsense on").exit_status == 1
    assert tool("").exit_status == 2
