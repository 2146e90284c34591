"""The HTTPS API that kube-apiserver calls on each virtual node, and the agent's own plain status endpoint."""
