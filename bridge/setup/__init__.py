"""Before the agent runs: looks at a cluster and writes its settings (`init`), and checks a set-up (`doctor`).

Installs nothing and leaves nothing behind on the cluster; everything there is done by plain shell scripts.
"""
