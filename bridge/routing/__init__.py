"""Which cluster a pod goes to: rules, wait and NUMA estimates, the choice, and the loop that opens gates."""
