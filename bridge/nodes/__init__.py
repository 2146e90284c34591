"""The Node objects that stand for clusters: what they offer, their status, their lease."""
