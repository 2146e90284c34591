"""`python -m bridge.cli`: the command without its script, for starts from a known interpreter."""

from bridge.cli import main

main(prog_name="hpc-bridge")
