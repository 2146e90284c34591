"""The demo's last words: what to try next."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bridge.testbed.agent import Agent
from bridge.testbed.files import shipped


def again() -> str:
    """After a demo that has ended."""
    return """
next: `make demo KEEP=1` (or `hpc-bridge demo --keep`) leaves all of this running and says how to reach it, for
  kubectl get nodes -o wide
  kubectl apply -f examples/hello-job.yaml; kubectl wait --for=condition=complete job/hello
  kubectl events
  kubectl logs -f job/hello"""


def kept(kubeconfig: Path, agent: Agent, work: Path) -> str:
    """While everything goes on running."""
    example = _shown(shipped("examples") / "hello-job.yaml")
    programs = Path(sys.executable).parent
    return f"""
everything goes on running. In another terminal:
  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH   # kubectl and hpc-bridge
then try
  kubectl get nodes -o wide
  kubectl describe node pbs-alpha
  kubectl delete job hello; kubectl apply -f {example}
  kubectl get pods -w
  kubectl events
  kubectl wait --for=condition=complete job/hello
  kubectl logs -f job/hello
  hpc-bridge status --agent 127.0.0.1:{agent.status_port}
  hpc-bridge render -c {agent.config} {example}
logs: {agent.log} and others in {work}
press Ctrl-C here to stop it all
"""


def _shown(path: Path) -> str:
    """The path as one would type it here."""
    checkout = Path("examples") / path.name
    if checkout.is_file():
        return str(checkout)
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
