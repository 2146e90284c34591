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
  kubectl logs -f job/hello
  hpc-bridge clusters; hpc-bridge explain examples/routed-job.yaml"""


def kept(kubeconfig: Path, agent: Agent, work: Path) -> str:
    """While everything goes on running."""
    example, routed = (_shown(shipped("examples") / f"{name}.yaml") for name in ("hello-job", "routed-job"))
    programs = Path(sys.executable).parent
    return f"""
everything goes on running. In another terminal:
  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH   # kubectl and hpc-bridge
then try
  kubectl get nodes -o wide
  kubectl describe node pbs-alpha
  kubectl get routingrules
  kubectl delete job routed; kubectl apply -f {routed}
  kubectl get pods -o wide -w
  kubectl events
  kubectl apply -f {example}
  kubectl wait --for=condition=complete job/hello
  kubectl logs -f job/hello
  hpc-bridge status --agent 127.0.0.1:{agent.status_port}
  hpc-bridge clusters --agent 127.0.0.1:{agent.status_port}
  hpc-bridge explain --agent 127.0.0.1:{agent.status_port} {routed}
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
