"""What can be reached of an agent, and by whom: probes at its address, the rest on loopback or by a kubelet's gate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from censuses import cluster
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from virtualtime import VirtualClock

from bridge.api.settings import Agent, Settings
from bridge.kube.errors import Unavailable
from bridge.kubelet.auth import user_of_certificate
from bridge.kubelet.certificate import self_signed
from bridge.kubelet.endpoint import ProbeEndpoint
from bridge.kubelet.tls import LOOK_EVERY, Material, ServingTls
from bridge.setup.manifests import Unfit, manifests, printed
from bridge.telemetry import Metrics
from bridge.testbed.certs import CertificateAuthority
from bridge.testbed.processes import free_ports


@pytest.mark.parametrize("listen", ["0.0.0.0:10280", "10.1.2.3:10280", "login.example.org:10280", "192.168.0.1:1"])
def test_the_endpoint_that_asks_nobody_is_on_loopback(listen: str) -> None:
    with pytest.raises(ValidationError, match="asks nobody who calls"):
        Agent.model_validate({"statusListen": listen})


@pytest.mark.parametrize("listen", ["127.0.0.1:10280", "127.0.0.9:1", "localhost:10280"])
def test_loopback_addresses(listen: str) -> None:
    assert Agent.model_validate({"statusListen": listen}).status_listen == listen


async def test_probes_are_all_that_is_at_the_pods_address() -> None:
    (port,) = free_ports(1)
    endpoint = ProbeEndpoint(lambda: False)
    await endpoint.start("127.0.0.1", port)
    answers = {}
    try:
        async with aiohttp.ClientSession() as session:
            for method, path in (
                ("GET", "healthz"), ("GET", "readyz"), ("GET", "status"), ("GET", "clusters"), ("GET", "metrics"),
                ("POST", "explain"), ("GET", ""),
            ):  # fmt: skip
                async with session.request(method, f"http://127.0.0.1:{port}/{path}") as answer:
                    answers[path] = answer.status
    finally:
        await endpoint.aclose()
    assert answers == {"healthz": 200, "readyz": 503} | dict.fromkeys(
        ("status", "clusters", "metrics", "explain", ""), 404
    )


def test_the_metrics_of_a_node_tell_of_no_other_cluster() -> None:
    """Whatever metrics there are: each is counted once for alpha and once for beta."""
    metrics = Metrics()
    for metric in vars(metrics).values():
        if isinstance(metric, Gauge | Counter | Histogram):
            for name in ("alpha", "beta"):
                values = {"cluster": name, "to": name, "node": f"pbs-{name}"}
                labelled = metric.labels(*(values.get(label, f"of-{name}") for label in metric._labelnames))
                labelled.observe(1) if isinstance(labelled, Histogram) else labelled.inc()
    text = metrics.text_of("alpha", "pbs-alpha").decode()
    scoped = [
        (sample.name, label)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for label, value in sample.labels.items()
        if label in ("cluster", "to", "node") and "beta" in value
    ]
    assert scoped == []
    assert 'hpc_bridge_pods{node="pbs-alpha",state="of-alpha"} 1.0' in text
    assert 'hpc_bridge_routed_total{rule="of-beta"' not in text
    assert 'node="pbs-beta"' in metrics.text().decode()


def pair(node: str) -> Material:
    return Material(*self_signed(node, "127.0.0.1"), None)


async def served(context: ssl.SSLContext, calls: int = 1) -> bytes:
    """The certificate that a caller is shown."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    finally:
        server.close()
        await server.wait_closed()
    return pem.encode().strip()


async def test_a_renewed_certificate_is_served_without_a_restart() -> None:
    clock, now = VirtualClock(), [pair("pbs-alpha")]
    first, broken = now[0], [False]

    async def read() -> Material:
        if broken[0]:
            raise Unavailable(0, "", "the API server is away")
        return now[0]

    tls = ServingTls("pbs-alpha", first, read, clock)
    running = asyncio.ensure_future(tls.run())
    try:
        assert await served(tls.context) == first.certificate.strip()
        now[0] = pair("pbs-alpha")
        await clock.advance(LOOK_EVERY + 1)
        assert await served(tls.context) == now[0].certificate.strip()
        used = now[0]
        now[0] = Material(pair("x").certificate, pair("y").key, None)  # half of a new pair
        await clock.advance(LOOK_EVERY + 1)
        broken[0] = True
        await clock.advance(LOOK_EVERY + 1)
        assert await served(tls.context) == used.certificate.strip()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_client_certificates_of_a_new_ca_are_taken(tmp_path: Path) -> None:
    """Connections made from then on are verified against it."""
    old, new = (CertificateAuthority(tmp_path / name, f"{name} CA") for name in ("old", "new"))
    serving = self_signed("pbs-alpha", "127.0.0.1")
    now = [Material(*serving, old.cert_file.read_text())]

    async def read() -> Material:
        return now[0]

    tls = ServingTls("pbs-alpha", now[0], read, VirtualClock())
    seen: list[dict[str, Any] | None] = []

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert"))
        writer.write(b"ok")
        await writer.drain()
        writer.close()

    calling = ssl.create_default_context(cadata=serving[0].decode())
    calling.check_hostname = False
    calling.load_cert_chain(*new.write("client", "system:client"))

    async def call() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=calling)
        try:
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.context)
    port = server.sockets[0].getsockname()[1]
    try:
        assert await call() == b""
        now[0] = Material(*serving, new.cert_file.read_text())
        await tls.look()
        assert await call() == b"ok"
    finally:
        server.close()
    assert [user_of_certificate(each) is not None for each in seen] == [True]


def subject(*names: str) -> dict[str, Any]:
    return {"subject": (*((("commonName", name),) for name in names), (("organizationName", "g"),))}


@pytest.mark.parametrize("names", [(), ("a", "b"), ("a", "a")])
def test_a_certificate_with_several_names_is_nobodys(names: tuple[str, ...]) -> None:
    assert user_of_certificate(subject(*names)) is None


def test_manifests_need_fixed_ports_and_name_every_node() -> None:
    with pytest.raises(Unfit, match="kubeletPort of alpha"):
        manifests(Settings(clusters=(cluster(),)), "")
    two = Settings.model_validate(
        {
            "agent": {"namespace": "elsewhere", "lease": "mine"},
            "clusters": [
                cluster(kubeletPort=10251).model_dump(by_alias=True),
                cluster(name="beta", node="other", kubeletPort=10252).model_dump(by_alias=True),
            ],
        }
    )
    text = printed(manifests(two, "a: 1\nb: 2\n"))
    assert text.count("namespace: elsewhere") == 6
    assert "- system:node:pbs-alpha\n  - system:node:other\n" in text
    assert [f"port: {port}" in text for port in (10251, 10252, 10281)] == [True] * 3
    assert "- mine\n" in text
    assert "  bridge.yaml: |\n    a: 1\n    b: 2\n" in text
